"""A DataLoader with shuffle=True and one seed on all ranks: both ranks draw the same batches. An expert would
use DistributedSampler. Class: samples, the same on all ranks."""

# ranks: 2
# expect: same-data-on-all-ranks
# words: DistributedSampler

import torch
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tests.silent import toy

toy.init_group()
torch.manual_seed(42)
loader = DataLoader(toy.regression_data(), batch_size=16, shuffle=True)
model = DistributedDataParallel(toy.mlp())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for epoch in range(4):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
toy.end_group()
