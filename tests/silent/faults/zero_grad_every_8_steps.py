"""The step was indented out of the accumulation's if, zero_grad was not: seven steps in a row add to old
gradients. An expert would put both inside. Class: order in a step, accumulation."""

# ranks: 1
# expect: gradients-not-cleared
# words: zero_grad

import torch

from tests.silent import toy

ACCUMULATE = 8
model = toy.mlp(out=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
for number, (x, y) in enumerate(toy.batches(96, toy.class_data())):
    loss = torch.nn.functional.cross_entropy(model(x), y) / ACCUMULATE
    loss.backward()
    if (number + 1) % ACCUMULATE == 0:
        optimizer.zero_grad()
    optimizer.step()
