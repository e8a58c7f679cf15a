"""A training is resumed from a checkpoint that has the optimizer's state, and only the weights are loaded:
Adam starts with empty moments. An expert would load both. Class: loading, resume."""

# ranks: 1
# expect: resume-without-optimizer
# words: optimizer

import tempfile
from pathlib import Path

import torch

from tests.silent import toy


def train(model, optimizer, first, last):
    for _, (x, y) in zip(range(first, last), toy.batches(last - first), strict=True):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "last.pt")
    before = toy.mlp()
    adam = torch.optim.Adam(before.parameters(), lr=1e-3)
    train(before, adam, 0, 40)
    torch.save({"model": before.state_dict(), "optimizer": adam.state_dict(), "step": 40}, file)
    del before, adam
    checkpoint = torch.load(file)
    model = toy.mlp()
    model.load_state_dict(checkpoint["model"])
    train(model, torch.optim.Adam(model.parameters(), lr=1e-3), checkpoint["step"], 120)
