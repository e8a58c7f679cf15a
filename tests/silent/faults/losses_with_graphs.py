"""The running loss is summed as a tensor with its graph, over the whole training: each step keeps its graph
alive. An expert would add loss.item(). Class: growth."""

# ranks: 1
# expect: graphs-retained
# words: item\(\)|detach

import torch

from tests.silent import toy

model = toy.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
running = 0
for x, y in toy.batches(200):
    loss = torch.nn.functional.mse_loss(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running = running + loss
print(running / 200)
