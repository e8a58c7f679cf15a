"""The model, not the optimizer, is cleared right before the step, in a helper that "prepares" it. An expert
would clear before backward. Class: order in a step."""

# ranks: 1
# expect: zeroed-before-step
# words: before the backward|after optimizer.step

import torch

from tests.silent import toy

model = toy.mlp(out=4, dropout=0.2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def prepare(net):
    net.train()
    net.zero_grad(set_to_none=False)


for x, y in toy.batches(60, toy.class_data()):
    torch.nn.functional.cross_entropy(model(x), y).backward()
    prepare(model)
    optimizer.step()
