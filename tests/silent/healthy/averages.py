"""Averages of weights beside or instead of the trained ones. Kinds: EMA, EMA swapped in for a validation,
AveragedModel, SWA with update_bn at the end, lookahead that pulls the weights back, the best weights restored
at the end."""

# ranks: 1
# args: --kind ema
# args: --kind swapped
# args: --kind averaged-model
# args: --kind swa
# args: --kind lookahead
# args: --kind best

import argparse
import copy

import torch
from torch.optim.swa_utils import SWALR, AveragedModel, update_bn
from torch.utils.data import DataLoader

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
model = toy.norm_net()
shadow = copy.deepcopy(model).requires_grad_(False).eval()
averaged = AveragedModel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
slow_rate = SWALR(optimizer, swa_lr=0.01, anneal_epochs=2)
train = DataLoader(toy.regression_data(), 16, shuffle=True)
test = DataLoader(toy.regression_data(64, seed=9), 16)
best, best_loss = None, float("inf")


@torch.no_grad()
def validate(net):
    net.eval()
    total = sum(torch.nn.functional.mse_loss(net(x), y).item() for x, y in test)
    net.train()
    return total


for epoch in range(6):
    for step, (x, y) in enumerate(train):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(shadow.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.1)
                if kind == "lookahead" and step % 5 == 4:
                    fast.copy_(slow)
        if kind == "averaged-model":
            averaged.update_parameters(model)
    if kind == "swa" and epoch > 2:
        averaged.update_parameters(model)
        slow_rate.step()
    if kind == "swapped":
        weights = copy.deepcopy(model.state_dict())
        model.load_state_dict(shadow.state_dict() | {k: v for k, v in weights.items() if "running" in k})
        validate(model)
        model.load_state_dict(weights)
    if (loss := validate(model)) < best_loss:
        best, best_loss = copy.deepcopy(model.state_dict()), loss
if kind == "swa":
    update_bn(train, averaged)
    validate(averaged)
if kind == "best":
    model.load_state_dict(best)
    validate(model)
