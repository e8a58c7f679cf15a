"""StepLR(step_size=1, gamma=0.5) is meant for epochs and is stepped after every batch: the rate is below 1e-6
after 14 steps. An expert would step it after the epoch. Class: scheduler frequency."""

# ranks: 1
# expect: scheduler-steps-often|learning-rate-zero
# words: epoch

import torch
from torch.utils.data import DataLoader

from tests.silent import toy

model = toy.mlp(dropout=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
halving = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
loader = DataLoader(toy.regression_data(), batch_size=16, shuffle=True)
for epoch in range(6):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        halving.step()
