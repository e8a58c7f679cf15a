"""ReduceLROnPlateau gets each rank's own loss, so the ranks lower their rates in different epochs. An expert
would average the metric over the ranks first. Class: weights drift, different learning rates."""

# ranks: 2
# expect: ranks-drifted
# words: learning rate

import torch
from torch.nn.parallel import DistributedDataParallel

from tests.silent import toy

toy.init_group()
model = DistributedDataParallel(toy.mlp())
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
for epoch in range(12):
    total = 0.0
    for step in range(8):
        x, y = toy.rank_batch(step + 8 * epoch)
        loss = torch.nn.functional.mse_loss(model(x), y + 0.5 * toy.RANK * torch.randn_like(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    plateau.step(total)
toy.end_group()
