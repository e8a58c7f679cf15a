"""Trainings that continue from a file as people write them, and files that start something new. Kinds: epochs
with all states, steps with all states and the sampler's, the scheduler recreated with last_epoch, the
scheduler wound forward, an average of the weights, an optimizer without moments, rates set by hand from the
epoch, states loaded in an object, pretrained weights whose file counts epochs, a pretrained backbone for a
new head, adapters alone, a prefix that is tried and then removed, tensors of another size left out, a file
that the script has just written, a new optimizer for a second phase, weights of an average loaded for another
training."""

# ranks: 1
# args: --kind epochs
# args: --kind steps
# args: --kind last-epoch
# args: --kind wound
# args: --kind average
# args: --kind without-moments
# args: --kind by-hand
# args: --kind object
# args: --kind pretrained
# args: --kind new-head
# args: --kind adapters
# args: --kind prefix-tried
# args: --kind other-size
# args: --kind just-written
# args: --kind amp

import argparse
import tempfile
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from tests.silent import toy

parser = argparse.ArgumentParser()
parser.add_argument("--kind")
kind = parser.parse_args().kind
EPOCHS = 10


class Net(nn.Module):
    def __init__(self, classes=4, adapter=False):
        super().__init__()
        self.backbone, self.head = toy.norm_net(8, 16), nn.Linear(16, classes)
        self.adapter = nn.Linear(16, 16, bias=False) if adapter else None
        if adapter:
            nn.init.zeros_(self.adapter.weight)

    def forward(self, x):
        x = self.backbone(x).relu()
        return self.head(x if self.adapter is None else x + self.adapter(x))


class State:
    """All that a training consists of."""

    def __init__(self, model, rate=2e-3):
        self.model = model
        if kind == "without-moments":
            self.optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        else:
            self.optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=rate)
        self.scheduler = None
        if kind in ("epochs", "steps", "object", "amp"):
            self.scheduler = CosineAnnealingLR(self.optimizer, T_max=200 if kind == "steps" else EPOCHS)
        if kind == "wound":
            self.scheduler = LambdaLR(self.optimizer, lambda epoch: 0.9**epoch)
        self.average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.95))
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, enabled=kind == "amp")
        self.epoch = self.global_step = 0

    def state_dict(self):
        states = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        states |= {"epoch": self.epoch, "global_step": self.global_step, "ema": self.average.state_dict()}
        if self.scheduler is not None:
            states["scheduler"] = self.scheduler.state_dict()
        return states | {"scaler": self.scaler.state_dict(), "rng": torch.get_rng_state()}

    def load_state_dict(self, states):
        self.model.load_state_dict(states["model"])
        self.optimizer.load_state_dict(states["optimizer"])
        if self.scheduler is not None and kind != "wound":
            self.scheduler.load_state_dict(states["scheduler"])
        if kind == "average":
            self.average.load_state_dict(states["ema"])
        self.scaler.load_state_dict(states["scaler"])
        self.epoch, self.global_step = states["epoch"], states["global_step"]
        torch.set_rng_state(states["rng"])


def train(state, start_epoch, end_epoch):
    generator = torch.Generator().manual_seed(start_epoch)
    loader = DataLoader(toy.class_data(), 16, shuffle=True, generator=generator)
    for epoch in range(start_epoch, end_epoch):
        if kind == "by-hand":
            for group in state.optimizer.param_groups:
                group["lr"] = 2e-3 * 0.1 ** (epoch // 6)
        for x, y in loader:
            loss = cross_entropy(state.model(x), y)
            state.optimizer.zero_grad()
            state.scaler.scale(loss).backward()
            state.scaler.step(state.optimizer)
            state.scaler.update()
            state.global_step += 1
            if kind == "steps":
                state.scheduler.step()
            if kind == "average":
                state.average.update_parameters(state.model)
        if state.scheduler is not None and kind != "steps":
            state.scheduler.step()
        state.epoch = epoch + 1


def make_file(file):
    """Write a checkpoint as an earlier run would have."""
    torch.manual_seed(3)
    model = Net(10 if kind == "other-size" else 4)
    state = State(model)
    loader = DataLoader(toy.class_data(), 16, shuffle=True)
    moments = state.optimizer.state
    for p in model.parameters() if kind != "without-moments" else ():
        zeros = torch.zeros_like(p)
        moments[p] = {"step": torch.tensor(64.0), "exp_avg": zeros, "exp_avg_sq": zeros + 1e-4}
    state.epoch, state.global_step = 4, 4 * len(loader)
    if state.scheduler is not None:
        number = state.global_step if kind == "steps" else state.epoch
        state.scheduler.last_epoch = state.scheduler._step_count = number
    torch.save(state.state_dict(), file)


def load_some(model, states):
    if kind == "new-head":
        weights = {key: value for key, value in states["model"].items() if not key.startswith("head.")}
        print(model.load_state_dict(weights, strict=False))
    elif kind == "adapters":
        model.load_state_dict(states["model"], strict=False)
        model.backbone.requires_grad_(False)
        print(model.load_state_dict({"adapter.weight": torch.zeros(16, 16)}, strict=False).missing_keys)
    elif kind == "prefix-tried":
        weights = {"module." + key: value for key, value in states["model"].items()}
        result = model.load_state_dict(weights, strict=False)
        if result.missing_keys:
            model.load_state_dict({key.removeprefix("module."): value for key, value in weights.items()})
    elif kind == "other-size":
        own = model.state_dict()
        weights = {key: value for key, value in states["model"].items() if own[key].shape == value.shape}
        own.update(weights)
        model.load_state_dict(own)
    else:
        model.load_state_dict(states["model"])


def main():
    model = Net(adapter=kind == "adapters")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "last.pt")
        if kind == "just-written":
            torch.save(State(model).state_dict(), file)
        else:
            make_file(file)
        states = torch.load(file, weights_only=True)
    if kind in ("pretrained", "new-head", "adapters", "prefix-tried", "other-size", "just-written"):
        load_some(model, states)
        train(State(model), 0, 6)
        return
    state = State(model)
    state.load_state_dict(states)
    start_epoch = state.epoch
    if kind == "last-epoch":
        for group in state.optimizer.param_groups:
            group.setdefault("initial_lr", group["lr"])
        state.scheduler = CosineAnnealingLR(state.optimizer, EPOCHS, last_epoch=start_epoch - 1)
    if kind == "wound":
        for _ in range(start_epoch):
            state.scheduler.step()
    train(state, start_epoch, EPOCHS)


main()
