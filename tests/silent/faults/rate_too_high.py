"""Momentum 0.9 with a rate of 2 on a linear model: the loss grows until it overflows. An expert would
lower the rate. Class: not finite, learning rate."""

# ranks: 1
# expect: loss-not-finite
# words: learning rate

import torch

from tests.silent import toy

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=2.0, momentum=0.9)
for x, y in toy.batches(120):
    loss = (model(x) - y).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
