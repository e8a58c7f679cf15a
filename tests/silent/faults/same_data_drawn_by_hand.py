"""A get_batch function draws positions with torch.randint after the same manual_seed on all ranks. An expert
would add the rank to the seed. Class: samples, the same on all ranks, without a DataLoader."""

# ranks: 2
# expect-check: same-data-on-all-ranks
# words: same samples|seed

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
torch.manual_seed(1337)
text = toy.token_data(4, 500).flatten()


def get_batch(length=8, size=4):
    starts = torch.randint(len(text) - length - 1, (size,))
    return (torch.stack([text[i + shift : i + shift + length] for i in starts]) for shift in (0, 1))


model = DistributedDataParallel(nn.Sequential(nn.Embedding(20, 16), nn.Linear(16, 20)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for _ in range(80):
    x, y = get_batch()
    loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
toy.end_group()
