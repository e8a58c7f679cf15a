"""zero_grad is never called: each step has the sum of all gradients so far. An expert would clear them in
every step. Class: order in a step."""

# ranks: 1
# expect: gradients-not-cleared
# words: zero_grad

import torch

from tests.silent import toy

model = toy.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for x, y in toy.batches(60):
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
