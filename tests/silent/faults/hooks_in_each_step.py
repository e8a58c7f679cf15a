"""A forward hook for activations is registered in each step and never removed, and its list keeps them with
their graphs. An expert would register it once. Class: growth."""

# ranks: 1
# expect: hooks-growing|graphs-retained
# words: hook|detach

import torch

from tests.silent import toy

model = toy.mlp(out=4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
activations = []
for x, y in toy.batches(200, toy.class_data()):
    model[1].register_forward_hook(lambda module, inputs, output: activations.append(output))
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
