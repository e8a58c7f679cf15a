"""A scaler that doubles its scale after every good step overflows in the next one: half of the steps are
skipped. An expert would keep growth_interval at 2000. Class: not finite, mixed precision."""

# ranks: 1
# expect: gradient-overflow
# words: bf16|skip

import torch

from tests.silent import toy

model = toy.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=1)
for x, y in toy.batches(120):
    with torch.autocast("cpu", dtype=torch.float16):
        prediction = model(x)
        loss = 10 * (prediction.float() - y).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
