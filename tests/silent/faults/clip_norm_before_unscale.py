"""Gradients are clipped to norm 1 while the scaler's factor is in them: after unscaling they are tiny. An
expert would call scaler.unscale_ first. Class: order in a step, mixed precision."""

# ranks: 1
# expect: clip-before-unscale
# words: unscale_

import torch

from tests.silent import toy

model = toy.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scaler = torch.amp.GradScaler("cpu")
for x, y in toy.batches(60):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = torch.nn.functional.mse_loss(model(x).float(), y)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
