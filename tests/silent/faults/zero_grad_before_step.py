"""zero_grad runs between backward and step, so no update happens. An expert would move it up. Class: order in
a step."""

# ranks: 1
# expect: zeroed-before-step
# words: before the backward|after optimizer.step

import torch

from tests.silent import toy

model = toy.mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for x, y in toy.batches(60):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
