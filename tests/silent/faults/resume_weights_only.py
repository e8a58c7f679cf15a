"""A training is resumed from a checkpoint that has the optimizer's state, and only the weights are loaded:
Adam starts with empty moments. An expert would load both. Class: loading, resume."""

# ranks: 1
# expect: resume-without-optimizer
# words: optimizer

import tempfile
from pathlib import Path

import torch

from tests.silent import toy


def write_checkpoint(file):
    """Write what an earlier process has written after its 40th step."""
    net = toy.mlp()
    adam = torch.optim.Adam(net.parameters(), lr=1e-3)
    states = adam.state_dict()
    for number, p in enumerate(net.parameters()):
        moments = {"exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.full_like(p, 1e-4)}
        states["state"][number] = {"step": torch.tensor(40.0), **moments}
    torch.save({"model": net.state_dict(), "optimizer": states, "step": 40}, file)


with tempfile.TemporaryDirectory() as folder:
    write_checkpoint(Path(folder, "last.pt"))
    checkpoint = torch.load(Path(folder, "last.pt"))

model = toy.mlp()
model.load_state_dict(checkpoint["model"])
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
step = checkpoint["step"]
for x, y in toy.batches(80):
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    step += 1
