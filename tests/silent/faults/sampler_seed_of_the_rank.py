"""Each rank passes its own seed to DistributedSampler: the shares come from different permutations and
overlap. An expert would pass one seed. Class: samples, shared between ranks in part."""

# ranks: 2
# expect: sampler-seeds-differ
# words: seed

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from tests.silent import toy

toy.init_group()
seed = 7 + toy.RANK
torch.manual_seed(seed)
dataset = toy.regression_data()
sampler = DistributedSampler(dataset, shuffle=True, seed=seed)
loader = DataLoader(dataset, batch_size=16, sampler=sampler)
model = DistributedDataParallel(toy.mlp())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(5):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
toy.end_group()
