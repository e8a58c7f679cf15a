"""Learning rates as people set them. Kinds: warm-up and cosine with LambdaLR per step, SequentialLR, plateau
on a validation loss, one scheduler with a rate of 0 for a part at first, two optimizers with schedules of
their own, warm-up per micro-batch, warm restarts per step, a class around an optimizer (Noam), OneCycle with
accumulation, steps that a scaler skips, chained schedulers, a cosine that goes on beyond its length, a
trapezoid, a finder of rates, ten steps at 0 at the end, a schedule in epochs that is much longer than the
run, a cycle from and to 0."""

# ranks: 1
# args: --kind warm-up-cosine
# args: --kind sequential
# args: --kind plateau
# args: --kind part-at-0
# args: --kind two-optimizers
# args: --kind per-micro-batch
# args: --kind restarts
# args: --kind noam
# args: --kind one-cycle-accumulated
# args: --kind skipped
# args: --kind chained
# args: --kind beyond
# args: --kind trapezoid
# args: --kind finder
# args: --kind cooldown
# args: --kind planned-long
# args: --kind alternating

import argparse
import copy
import math

import torch
from torch.nn.functional import mse_loss
from torch.optim import lr_scheduler as schedulers
from torch.utils.data import DataLoader

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
EPOCHS, EVERY = 10, 4 if kind in ("per-micro-batch", "one-cycle-accumulated") else 1
loader = DataLoader(toy.regression_data(), 16, shuffle=True)
STEPS = EPOCHS * len(loader)


class Noam:
    """The class around an optimizer that the transformer tutorials have."""

    def __init__(self, optimizer, width=32, warm_up=60):
        self.optimizer, self.width, self.warm_up, self.num = optimizer, width, warm_up, 0

    def step(self):
        self.num += 1
        rate = self.width**-0.5 * min(self.num**-0.5, self.num * self.warm_up**-1.5)
        for group in self.optimizer.param_groups:
            group["lr"] = 0.5 * rate
        self.optimizer.step()

    def zero_grad(self):
        self.optimizer.zero_grad()


def cosine(step, warm_up=20, total=STEPS):
    if step < warm_up:
        return step / warm_up
    return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / (total - warm_up)))


def trapezoid(step):
    return min(1, step / 20, (STEPS - step) / 40)


model, second = toy.mlp(), toy.mlp()
groups = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
sgd = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
optimizer = Noam(torch.optim.Adam(model.parameters(), lr=0)) if kind == "noam" else sgd
second_optimizer = torch.optim.Adam(second.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=kind == "skipped")
plateau = schedulers.ReduceLROnPlateau(sgd, factor=0.5, patience=1)
per_step = {
    "warm-up-cosine": lambda: [schedulers.LambdaLR(sgd, cosine)],
    "sequential": lambda: [
        schedulers.SequentialLR(
            sgd,
            [
                schedulers.LinearLR(sgd, 0.01, total_iters=20),
                schedulers.CosineAnnealingLR(sgd, T_max=STEPS - 20),
            ],
            milestones=[20],
        )
    ],
    "part-at-0": lambda: [
        schedulers.LambdaLR(sgd, [lambda step: float(step >= 60), lambda step: 0.99**step])
    ],
    "two-optimizers": lambda: [
        schedulers.CosineAnnealingLR(sgd, T_max=STEPS),
        schedulers.ExponentialLR(second_optimizer, 0.98),
    ],
    "per-micro-batch": lambda: [schedulers.LinearLR(sgd, 0.1, total_iters=40)],
    "restarts": lambda: [schedulers.CosineAnnealingWarmRestarts(sgd, T_0=20, T_mult=2)],
    "one-cycle-accumulated": lambda: [schedulers.OneCycleLR(sgd, 0.1, total_steps=STEPS // EVERY + 1)],
    "skipped": lambda: [schedulers.CosineAnnealingLR(sgd, T_max=STEPS)],
    "chained": lambda: [
        schedulers.ChainedScheduler(
            [schedulers.ConstantLR(sgd, 0.1, total_iters=10), schedulers.ExponentialLR(sgd, 0.99)]
        )
    ],
    "beyond": lambda: [schedulers.CosineAnnealingLR(sgd, T_max=40)],
    "trapezoid": lambda: [schedulers.LambdaLR(sgd, trapezoid)],
    "cooldown": lambda: [schedulers.PolynomialLR(sgd, total_iters=STEPS - 10, power=2)],
    "alternating": lambda: [schedulers.CyclicLR(sgd, 0.0, 0.1, step_size_up=4, mode="triangular2")],
}.get(kind, list)()
per_epoch = [schedulers.CosineAnnealingLR(sgd, T_max=300)] if kind == "planned-long" else []


def find_rate():
    """Raise the rate in each step from a tiny one, then start over with the weights from before."""
    before = copy.deepcopy(model.state_dict())
    for number, (x, y) in zip(range(40), toy.batches(40), strict=False):
        for group in sgd.param_groups:
            group["lr"] = 1e-7 * 10 ** (number / 8)
        sgd.zero_grad()
        mse_loss(model(x), y).backward()
        sgd.step()
    model.load_state_dict(before)
    sgd.state.clear()
    for group in sgd.param_groups:
        group["lr"] = 0.02


if kind == "finder":
    find_rate()
for epoch in range(EPOCHS):
    for step, (x, y) in enumerate(loader):
        loss = mse_loss(model(x), y) / EVERY
        if step % EVERY == 0:
            optimizer.zero_grad()
        scaler.scale(loss).backward()
        if kind == "skipped" and step == 7 and epoch < 3:
            model[0].weight.grad[0, 0] = float("inf")  # as from an overflow in float16
        is_last = step % EVERY == EVERY - 1
        if is_last and kind == "skipped":
            scaler.step(sgd)
            scaler.update()
        elif is_last:
            optimizer.step()
        if kind == "two-optimizers":
            second_optimizer.zero_grad()
            mse_loss(second(x), model(x).detach()).backward()
            second_optimizer.step()
        if is_last or kind == "per-micro-batch":
            for scheduler in per_step:
                scheduler.step()
    for scheduler in per_epoch:
        scheduler.step()
    if kind == "plateau":
        with torch.no_grad():
            plateau.step(sum(mse_loss(model(x), y).item() for x, y in loader))
