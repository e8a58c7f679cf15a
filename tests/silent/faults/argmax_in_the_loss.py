"""The loss is computed from rounded predictions, multiplied by one factor that does have a gradient (a
temperature): the network itself has none. An expert would use the logits. Class: cut graph."""

# ranks: 1
# expect: no-parameter-gradient
# words: argmax|graph

import torch
from torch import nn

from tests.silent import toy


class Scorer(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = toy.mlp(out=4)
        self.temperature = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.net(x)


model = Scorer()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in toy.batches(64, toy.class_data()):
    guess = model(x).argmax(1).float()
    loss = nn.functional.mse_loss(guess * model.temperature, y.float())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
