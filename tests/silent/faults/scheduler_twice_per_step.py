"""A training helper steps the scheduler and the loop does so as well: the schedule runs at double speed. An
expert would remove one call. Class: scheduler frequency."""

# ranks: 1
# expect: scheduler-steps-often
# words: once|per optimizer.step|each optimizer.step|scheduler

import torch

from tests.silent import toy

model = toy.mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)


def train_step(x, y):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    scheduler.step()


for x, y in toy.batches(100):
    train_step(x, y)
    scheduler.step()
