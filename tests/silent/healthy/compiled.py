"""torch.compile with the eager backend, which traces as the others do and needs no C++ compiler. Kinds: a
compiled model, a compiled loss, a compiled model that is validated."""

# ranks: 1
# args: --kind model
# args: --kind function
# args: --kind validated

import argparse

import torch

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
net = toy.norm_net()
model = net if kind == "function" else torch.compile(net, backend="eager")
optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)


def loss_of(x, y):
    return torch.nn.functional.mse_loss(model(x), y)


if kind == "function":
    loss_of = torch.compile(loss_of, backend="eager")
for step, (x, y) in enumerate(toy.batches(96)):
    optimizer.zero_grad()
    loss_of(x, y).backward()
    optimizer.step()
    if kind == "validated" and step % 24 == 23:
        model.eval()
        with torch.no_grad():
            print(loss_of(x, y).item())
        model.train()
