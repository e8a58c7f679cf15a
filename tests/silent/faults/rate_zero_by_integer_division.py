"""The warm-up factor is computed with // and is 0 until its last step, beyond the end of the training. An
expert would divide with /. Class: learning rate 0."""

# ranks: 1
# expect: learning-rate-zero
# words: learning rate

import torch

from tests.silent import toy

WARM_UP = 1000
model = toy.mlp()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) // WARM_UP))
for x, y in toy.batches(120):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    schedule.step()
