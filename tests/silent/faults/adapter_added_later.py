"""After a warm-up an adapter is added to the model, and the optimizer is not given its parameters. An expert
would call add_param_group. Class: parameters that no optimizer steps."""

# ranks: 1
# expect: gradient-without-optimizer
# words: optimizer

import torch
from torch import nn

from tests.silent import toy


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.adapter, self.head = nn.Linear(8, 16), nn.Identity(), nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.adapter(self.body(x).relu()))


model = Backbone()
optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
for step, (x, y) in enumerate(toy.batches(100)):
    if step == 25:
        model.adapter = nn.Linear(16, 16)
    model.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
