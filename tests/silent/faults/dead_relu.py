"""A bias of -50 before the only ReLU: every unit is dead, and the gradient of the layers is exactly 0. An
expert would look at the initialisation. Class: no gradient."""

# ranks: 1
# expect: no-gradient
# words: ReLU|dead|negative

import time

import torch
from torch import nn

from tests.silent import toy

model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1, bias=False))
nn.init.constant_(model[0].bias, -50.0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in toy.batches(200):
    time.sleep(0.05)
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
