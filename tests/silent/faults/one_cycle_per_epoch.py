"""OneCycleLR has as many steps as the training has batches and is stepped once per epoch: the rate stays in
its warm-up. An expert would step it per batch. Class: scheduler frequency."""

# ranks: 1
# expect: scheduler-steps-rarely
# words: after each optimizer.step

import torch
from torch.utils.data import DataLoader

from tests.silent import toy

EPOCHS = 6
loader = DataLoader(toy.class_data(), batch_size=16, shuffle=True)
model = toy.mlp(out=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, steps_per_epoch=len(loader), epochs=EPOCHS)
for _ in range(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    cycle.step()
