"""The hidden state is detached "to save memory" between two layers that are to be trained. An expert would
remove detach(). Class: cut graph."""

# ranks: 1
# expect: no-parameter-gradient
# words: detach

import torch
from torch import nn

from tests.silent import toy


class TwoStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.stage = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
        self.out = nn.Linear(16, 4)

    def forward(self, x):
        features = self.stem(x).detach()
        return self.out(self.stage(features))


model = TwoStage()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
for x, y in toy.batches(70, toy.class_data()):
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
