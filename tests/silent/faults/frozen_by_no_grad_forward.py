"""forward of the encoder is decorated with @torch.no_grad(), as it was used for features once; its weights
are in the optimizer and are meant to be trained. An expert would remove it. Class: cut graph."""

# ranks: 1
# expect: no-parameter-gradient
# words: no_grad

import torch
from torch import nn

from tests.silent import toy


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = toy.mlp(out=16, dropout=0.1)

    @torch.no_grad()
    def forward(self, x):
        return self.layers(x)


model = nn.Sequential(Encoder(), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.AdamW(
    [
        {"params": model[0].parameters(), "lr": 1e-4},
        {"params": model[2].parameters(), "lr": 1e-3},
    ]
)
for x, y in toy.batches(60, toy.class_data()):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
