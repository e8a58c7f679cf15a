"""A part of the model is not trained, on purpose. Kinds: frozen tower with all parameters in the
optimizer, frozen tower left out, tower in eval and under no_grad, head alone, biases alone, a group with
rate 0, unfreezing with add_param_group, frozen batch norms in evaluation mode, layers frozen in turn, a
rate for each layer. No kind uses the second head."""

# ranks: 1
# args: --kind frozen
# args: --kind left-out
# args: --kind no-grad
# args: --kind head
# args: --kind biases
# args: --kind rate-0
# args: --kind unfreezing
# args: --kind frozen-norms
# args: --kind unused-head
# args: --kind alternating
# args: --kind layer-rates

import argparse

import torch
from torch import nn

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
        self.neck = nn.Linear(16, 16)
        self.head, self.other_head = nn.Linear(16, 4), nn.Linear(16, 2)

    def forward(self, x):
        with torch.set_grad_enabled(kind != "no-grad"):
            x = self.tower(x)
        return self.head(self.neck(x).relu())


model = Model()
if kind in ("frozen", "left-out", "head", "unfreezing", "layer-rates"):
    model.tower.requires_grad_(False)
if kind == "head":
    model.neck.requires_grad_(False)
if kind == "biases":
    for name, p in model.named_parameters():
        p.requires_grad = name.endswith("bias")
groups = [{"params": [p for p in model.parameters() if p.requires_grad or kind == "frozen"]}]
if kind == "rate-0":
    groups = [
        {"params": model.neck.parameters()},
        {"params": model.tower.parameters(), "lr": 0.0},
        {"params": model.head.parameters()},
    ]
if kind == "layer-rates":
    groups = [
        {"params": part.parameters(), "lr": 0.01 * 0.5**n} for n, part in enumerate((model.head, model.neck))
    ]
optimizer = torch.optim.SGD(groups, lr=0.02, momentum=0.9)
for step, (x, y) in enumerate(toy.batches(100, toy.class_data())):
    model.train()
    if kind in ("frozen", "no-grad", "head", "frozen-norms"):
        model.tower.eval()
    if kind == "unfreezing" and step == 40:
        model.tower.requires_grad_(True)
        optimizer.add_param_group({"params": model.tower.parameters(), "lr": 0.001})
    if kind == "alternating":
        model.tower.requires_grad_(step // 10 % 2 == 0)
        model.neck.requires_grad_(step // 10 % 2 == 1)
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.step()
