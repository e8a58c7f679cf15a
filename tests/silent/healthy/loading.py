"""Weights and states that are loaded, all right. Kinds: a backbone without its head, a prefix that is
stripped, a head of another size left out, weights for a transfer to another task, a full resume, a head
alone, the best weights restored at the end, weights alone from a file with an optimizer for a new
training."""

# ranks: 1
# args: --kind backbone
# args: --kind stripped
# args: --kind resized-head
# args: --kind transfer
# args: --kind resume
# args: --kind resume-lora
# args: --kind best-at-end
# args: --kind only-optimizer-reset

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind


class Model(nn.Module):
    def __init__(self, classes=4):
        super().__init__()
        self.backbone, self.head = toy.mlp(8, 16), nn.Linear(16, classes)

    def forward(self, x):
        return self.head(self.backbone(x).relu())


def train(model, optimizer, num=50):
    for x, y in toy.batches(num, toy.class_data()):
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()


def optimizer_of(model):
    return torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=2e-3)


model = Model()
optimizer = optimizer_of(model)
with tempfile.TemporaryDirectory() as folder:
    file = Path(folder, "checkpoint.pt")
    source = Model(10 if kind == "resized-head" else 4)
    states = {"model": source.state_dict(), "epoch": 3}
    if kind in ("resume", "only-optimizer-reset"):
        adam = optimizer_of(source)
        train(source, adam, 20)
        states["optimizer"] = adam.state_dict()
    torch.save(states, file)
    weights = torch.load(file)["model"]
    if kind == "backbone":
        weights = {key: value for key, value in weights.items() if key.startswith("backbone")}
        model.load_state_dict(weights | {"classifier.weight": torch.zeros(3, 3)}, strict=False)
    elif kind == "stripped":
        weights = {f"module.{key}": value for key, value in weights.items()}
        model.load_state_dict({key.removeprefix("module."): value for key, value in weights.items()})
    elif kind == "resized-head":
        weights = {key: value for key, value in weights.items() if "head" not in key}
        print(model.load_state_dict(weights, strict=False))
    elif kind == "resume-lora":
        model.load_state_dict(weights)
        model.backbone.requires_grad_(False)
        optimizer = optimizer_of(model)
        model.load_state_dict({"head.bias": torch.zeros(4)}, strict=False)
    else:
        model.load_state_dict(weights)
    if kind == "resume":
        optimizer.load_state_dict(torch.load(file)["optimizer"])
    if kind == "transfer":
        model.head = nn.Linear(16, 4)
        optimizer = optimizer_of(model)
    train(model, optimizer)
    if kind == "best-at-end":
        model.load_state_dict(weights)
        with torch.no_grad():
            model(toy.class_data().tensors[0])
