"""unscale_ is called, but one line too late: after the clipping. An expert would swap the lines. Class: order
in a step, mixed precision."""

# ranks: 1
# expect: clip-before-unscale
# words: unscale_

import torch

from tests.silent import toy

model = toy.mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)


def update(loss):
    scaler.scale(loss).backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=2.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    return norm


for x, y in toy.batches(60):
    update((model(x) - y).square().mean())
