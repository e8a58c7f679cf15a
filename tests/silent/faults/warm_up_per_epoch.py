"""A chained warm-up and cosine decay in steps is stepped in the validation hook, five times in all. An expert
would step it with the optimizer. Class: scheduler frequency."""

# ranks: 1
# expect: scheduler-steps-rarely
# words: after each optimizer.step

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, SequentialLR

from tests.silent import toy

STEPS = 100
model = toy.mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
warm_up = LinearLR(optimizer, 0.01, total_iters=20)
decay = CosineAnnealingLR(optimizer, T_max=STEPS - 20)
schedule = SequentialLR(optimizer, [warm_up, decay], milestones=[20])
for step, (x, y) in enumerate(toy.batches(STEPS)):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    if step % 20 == 19:
        with torch.no_grad():
            print("validation", model(x).mean().item())
        schedule.step()
