"""A linear decay ends after a third of the steps, as the schedule was made for one epoch of three. An expert
would make it as long as the training. Class: learning rate 0, a schedule of another length."""

# ranks: 1
# expect: learning-rate-zero
# words: schedule

import torch

from tests.silent import toy

EPOCHS, STEPS = 3, 60
model = toy.mlp(dropout=0.1)
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
decay = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.0, 1 - step / STEPS))
for _ in range(EPOCHS):
    for x, y in toy.batches(STEPS):
        loss = (model(x) - y).abs().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        decay.step()
