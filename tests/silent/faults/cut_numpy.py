"""A resampling step goes through NumPy and back, which cuts the graph. An expert would write it with torch
operations. Class: cut graph."""

# ranks: 1
# expect: no-parameter-gradient
# words: NumPy|numpy

import torch
from torch import nn

from tests.silent import toy


class Resampler(nn.Module):
    def __init__(self):
        super().__init__()
        self.inputs, self.outputs = nn.Linear(8, 24), nn.Linear(12, 1)

    def forward(self, x):
        wave = self.inputs(x).data.cpu().numpy()
        half = torch.from_numpy(wave[:, ::2].copy())
        return self.outputs(half.tanh())


model = Resampler()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
criterion = nn.MSELoss()
for x, y in toy.batches(60):
    loss = criterion(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
