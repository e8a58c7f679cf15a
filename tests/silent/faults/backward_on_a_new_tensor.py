"""The losses are summed as numbers and wrapped in a new tensor that requires a gradient, which silences the
error of backward(). An expert would add tensors. Class: cut graph, the whole model."""

# ranks: 1
# expect: optimizer-without-gradients
# words: graph|detach|item|loss

import torch
from torch.nn import functional as F

from tests.silent import toy

model = toy.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for x, y in toy.batches(60):
    terms = [F.mse_loss(model(x), y).item(), 0.1 * F.l1_loss(model(x), y).item()]
    loss = torch.tensor(sum(terms), requires_grad=True)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
