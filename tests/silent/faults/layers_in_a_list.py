"""The hidden layers are in a plain list, so parameters() does not have them: only the outer layers train. An
expert would write nn.ModuleList. Class: parameters that no optimizer steps."""

# ranks: 1
# expect: gradient-without-optimizer
# words: ModuleList|list

import torch
from torch import nn

from tests.silent import toy


class Deep(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.hidden = [nn.Linear(16, 16) for _ in range(depth)]
        self.last = nn.Linear(16, 1)

    def forward(self, x):
        x = torch.tanh(self.first(x))
        for layer in self.hidden:
            x = torch.tanh(layer(x))
        return self.last(x)


model = Deep()
optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
for x, y in toy.batches(80):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
