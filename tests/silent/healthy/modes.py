"""Modes that change on purpose. Kinds: train and eval in turn, eval around a sample in the middle of an
epoch, dropout left on for Monte Carlo estimates, frozen batch norms, a frozen encoder that is always in
eval, a teacher in eval beside its student, batch norms recalibrated on the training data, a model without
dropout that stays in eval, functional dropout."""

# ranks: 1
# args: --kind in-turn
# args: --kind sample
# args: --kind monte-carlo
# args: --kind frozen-norms
# args: --kind frozen-encoder
# args: --kind teacher
# args: --kind recalibrated
# args: --kind no-modes
# args: --kind functional

import argparse
import copy

import torch
from torch import nn
from torch.utils.data import DataLoader

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        plain = kind in ("no-modes", "functional")
        self.encoder = toy.mlp(8, 16) if plain else toy.norm_net(8, 16)
        self.drop = nn.Identity() if plain else nn.Dropout(0.2)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        x = self.drop(self.encoder(x).relu())
        if kind == "functional":
            x = nn.functional.dropout(x, 0.1, training=self.training)
        return self.head(x)

    def train(self, mode=True):
        super().train(mode)
        if kind == "frozen-encoder":
            self.encoder.eval()
        if kind == "frozen-norms":
            for module in self.modules():
                if isinstance(module, nn.BatchNorm1d):
                    module.eval()
        return self


model = Model().train()
teacher = copy.deepcopy(model).eval().requires_grad_(False)
if kind == "frozen-encoder":
    model.encoder.requires_grad_(False)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-3)
train = DataLoader(toy.class_data(), 16, shuffle=True)
test = DataLoader(toy.class_data(96, seed=9), 16)
if kind == "no-modes":
    model.eval()


@torch.no_grad()
def evaluate():
    was_training = model.training
    model.eval()
    if kind == "monte-carlo":
        model.drop.train()
    right = sum((model(x).argmax(1) == y).sum().item() for x, y in test)
    model.train(was_training)
    return right


for epoch in range(6):
    for step, (x, y) in enumerate(train):
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        if kind == "teacher":
            with torch.no_grad():
                goal = teacher(x).softmax(1)
            loss = loss + nn.functional.kl_div(logits.log_softmax(1), goal, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if kind == "sample" and step == 8:
            model.eval()
            with torch.no_grad():
                model(x[:1])
            model.train()
    if kind == "recalibrated":
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.reset_running_stats()
                module.momentum = None
        with torch.no_grad():
            for x, _ in train:
                model(x)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.momentum = 0.1
    print(epoch, evaluate())
