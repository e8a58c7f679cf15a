"""The validation calls model.eval() and nobody switches back: dropout is off for the rest of the training. An
expert would call model.train() in each epoch. Class: mode."""

# ranks: 1
# expect: eval-while-training
# words: model\.train\(\)

import torch
from torch.utils.data import DataLoader

from tests.silent import toy

model = toy.mlp(dropout=0.3)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
loader = DataLoader(toy.regression_data(), batch_size=16, shuffle=True)
held_out = toy.regression_data(64, seed=9)


def validate():
    model.eval()
    with torch.no_grad():
        return torch.nn.functional.mse_loss(model(held_out.tensors[0]), held_out.tensors[1]).item()


for epoch in range(5):
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
    print(epoch, validate())
