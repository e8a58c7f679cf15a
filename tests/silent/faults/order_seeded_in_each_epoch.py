"""set_seed is called at the start of every epoch "for reproducibility", so that shuffle=True gives one
order. An expert would seed once. Class: samples, order."""

# ranks: 1
# expect: same-order-every-epoch
# words: seed

import torch
from torch.utils.data import DataLoader

from tests.silent import toy

loader = DataLoader(toy.regression_data(), batch_size=16, shuffle=True)
model = toy.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for _ in range(6):
    torch.manual_seed(42)
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
