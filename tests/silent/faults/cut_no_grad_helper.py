"""A helper that normalises the features has @torch.no_grad(), copied from the evaluation: the layers
before it never get a gradient. An expert would remove the decorator. Class: cut graph."""

# ranks: 1
# expect: no-parameter-gradient
# words: no_grad

import torch
from torch import nn

from tests.silent import toy


@torch.no_grad()
def unit_length(features):
    return features / features.norm(dim=-1, keepdim=True).clamp_min(1e-6)


class Embedder(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = toy.mlp(out=16)
        self.classes = nn.Linear(16, 4, bias=False)

    def forward(self, x):
        return 4 * self.classes(unit_length(self.tower(x)))


net = Embedder()
optim = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
for x, y in toy.batches(64, toy.class_data()):
    loss = nn.functional.cross_entropy(net(x), y)
    optim.zero_grad()
    loss.backward()
    optim.step()
