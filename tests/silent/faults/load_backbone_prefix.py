"""The file of a backbone is loaded into the model around it: the keys lack the prefix encoder. and only the
norm outside matches. An expert would load into model.encoder. Class: loading."""

# ranks: 1
# expect: nothing-loaded
# words: encoder\.

import torch
from torch import nn

from tests.silent import toy


class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("conv1", "conv2", "conv3")})
        self.norm = nn.LayerNorm(8)
        self.box = nn.Linear(8, 1)

    def forward(self, x):
        for layer in self.encoder.values():
            x = layer(x).relu()
        return self.box(self.norm(x))


pretrained = nn.ModuleDict({name: nn.Linear(8, 8) for name in ("conv1", "conv2", "conv3")})
pretrained["norm"] = nn.LayerNorm(8)
model = Detector()
model.load_state_dict(pretrained.state_dict(), strict=False)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for x, y in toy.batches(60):
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
