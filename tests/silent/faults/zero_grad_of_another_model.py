"""zero_grad is called on the model's copy for averages, and the trained model keeps its gradients. An expert
would clear the trained model. Class: order in a step."""

# ranks: 1
# expect: gradients-not-cleared
# words: zero_grad

import copy

import torch

from tests.silent import toy

model = toy.mlp()
ema = copy.deepcopy(model)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in toy.batches(64):
    ema.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    with torch.no_grad():
        for average, p in zip(ema.parameters(), model.parameters(), strict=True):
            average.mul_(0.99).add_(p, alpha=0.01)
