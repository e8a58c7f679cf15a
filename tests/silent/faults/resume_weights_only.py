"""A training is resumed from a checkpoint that has the optimizer's state, and only the weights are loaded:
Adam starts with empty moments. An expert would load both. Class: loading, resume."""

# ranks: 1
# expect: resume-without-optimizer
# words: optimizer

import tempfile
from pathlib import Path

import torch

from tests.silent import toy


def train_step(model, optimizer, batch):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(batch[0]), batch[1]).backward()
    optimizer.step()


with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "last.pt")
    model = toy.mlp()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch in toy.batches(2):  # an earlier process, which trained for 40 steps
        train_step(model, optimizer, batch)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 40}, file)
    checkpoint = torch.load(file)

model = toy.mlp()
model.load_state_dict(checkpoint["model"])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
step = checkpoint["step"]
for batch in toy.batches(80):
    train_step(model, optimizer, batch)
    step += 1
