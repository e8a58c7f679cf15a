"""The test set goes through batch norms in training mode, so their statistics learn it. An expert would call
model.eval() before. Class: mode in evaluation, batch norm."""

# ranks: 1
# expect: train-while-evaluating
# words: model\.eval\(\)

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.silent import toy


@torch.inference_mode()
def evaluate(net, loader):
    return sum(nn.functional.mse_loss(net(x), y).item() for x, y in loader) / len(loader)


net = toy.norm_net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
train = DataLoader(toy.regression_data(), 32, shuffle=True)
test = DataLoader(toy.regression_data(128, seed=7), 32)
for _ in range(8):
    net.train()
    for x, y in train:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x), y).backward()
        optimizer.step()
    evaluate(net, test)
