"""The trainer keeps a deep copy of the model that it is given together with its optimizer: the optimizer's
parameters never run. An expert would build the optimizer from the copy. Class: optimizer of other weights."""

# ranks: 1
# expect: optimizer-without-gradients
# words: create the optimizer|copy

import copy

import torch

from tests.silent import toy


class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = copy.deepcopy(model), optimizer

    def fit(self, num):
        for x, y in toy.batches(num):
            self.model.zero_grad()
            torch.nn.functional.mse_loss(self.model(x), y).backward()
            self.optimizer.step()


net = toy.mlp(dropout=0.1)
trainer = Trainer(net, torch.optim.SGD(net.parameters(), lr=0.1))
del net
trainer.fit(60)
