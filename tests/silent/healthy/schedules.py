"""Learning-rate schedules of all lengths. Kinds: per epoch with T_max in epochs, per step with T_max in
steps, warm restarts with fractions of epochs, ReduceLROnPlateau, warm-up from 0 and decay to 0, OneCycle,
MultiStep per epoch, StepLR with a step size in steps, cyclic, a schedule longer than a run that is cut
short, a rate set by hand, a scheduler per epoch beside one per batch, exponential decay per step."""

# ranks: 1
# args: --kind per-epoch
# args: --kind per-step
# args: --kind restarts
# args: --kind plateau
# args: --kind warm-up
# args: --kind one-cycle
# args: --kind multi-step
# args: --kind step-size
# args: --kind cyclic
# args: --kind cut-short
# args: --kind by-hand
# args: --kind both
# args: --kind exponential-per-step

import argparse

import torch
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import DataLoader

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
EPOCHS, loader = 8, DataLoader(toy.regression_data(), 16, shuffle=True)
STEPS = EPOCHS * len(loader)
model = toy.mlp()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def warm_up_and_decay(step):
    return min(step / 10, 1 - (step - 10) / (STEPS - 10))


per_epoch = {
    "per-epoch": lambda: schedulers.CosineAnnealingLR(optimizer, T_max=EPOCHS),
    "multi-step": lambda: schedulers.MultiStepLR(optimizer, [4, 6], 0.1),
    "both": lambda: schedulers.ExponentialLR(optimizer, 0.8),
}.get(kind, lambda: None)()
per_step = {
    "per-step": lambda: schedulers.CosineAnnealingLR(optimizer, T_max=STEPS),
    "warm-up": lambda: schedulers.LambdaLR(optimizer, warm_up_and_decay),
    "one-cycle": lambda: schedulers.OneCycleLR(optimizer, 0.1, epochs=EPOCHS, steps_per_epoch=len(loader)),
    "step-size": lambda: schedulers.StepLR(optimizer, step_size=3 * len(loader), gamma=0.5),
    "cyclic": lambda: schedulers.CyclicLR(optimizer, 0.01, 0.1, step_size_up=len(loader)),
    "cut-short": lambda: schedulers.CosineAnnealingLR(optimizer, T_max=20 * STEPS),
    "both": lambda: schedulers.LinearLR(optimizer, 0.1, total_iters=20),
    "exponential-per-step": lambda: schedulers.ExponentialLR(optimizer, 0.99),
}.get(kind, lambda: None)()
restarts = schedulers.CosineAnnealingWarmRestarts(optimizer, T_0=2) if kind == "restarts" else None
plateau = schedulers.ReduceLROnPlateau(optimizer, patience=1) if kind == "plateau" else None
for epoch in range(EPOCHS):
    total = 0.0
    for step, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
        if per_step is not None:
            per_step.step()
        if restarts is not None:
            restarts.step(epoch + step / len(loader))
        if kind == "by-hand":
            for group in optimizer.param_groups:
                group["lr"] = 0.05 * 0.97 ** (step + epoch)
    if per_epoch is not None:
        per_epoch.step()
    if plateau is not None:
        plateau.step(total)
