"""The code of the person who trains: a model, data, a loss and an optimizer, all of which may fail."""

import time

import acts
import torch
from torch import nn
from torch.utils.data import Dataset

acts.point("import")


class Seen(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden):
        return hidden.view_as(hidden)

    @staticmethod
    def backward(ctx, gradient):
        gradient = acts.point("backward", gradient)[0]
        while acts.stays:
            time.sleep(1000)
        return gradient


class Watched(nn.Module):
    """Changes nothing. Its state is asked for in every save."""

    def forward(self, hidden):
        if torch.is_grad_enabled():
            return acts.point("forward", Seen.apply(hidden))[0]
        return acts.point("evaluation", hidden)[0] if not self.training else hidden

    def get_extra_state(self):
        acts.point("save")
        if acts.PLAN["act"] == "no file can hold it":
            return lambda: None
        return 0

    def set_extra_state(self, state):
        acts.point("restore")


class Unused(nn.Module):
    def __init__(self):
        super().__init__()
        self.used, self.unused = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, hidden):
        return self.used(hidden)


def model():
    acts.point("factory")
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 32)]
    for _ in range(3):
        middle = Unused() if acts.PLAN["act"] == "unused" else nn.Linear(32, 32)
        layers += [Watched(), nn.ReLU(), middle]
    return nn.Sequential(*layers, Watched(), nn.Linear(32, 10))


class Data(Dataset):
    def __init__(self, count):
        chosen = torch.Generator().manual_seed(1)
        self.pictures = torch.rand(count, 1, 8, 8, generator=chosen)
        self.labels = torch.randint(10, (count,), generator=chosen)

    def __len__(self):
        return len(self.pictures)

    def __getitem__(self, index):
        acts.samples += 1
        return acts.point("data", self.pictures[index], self.labels[index])


def data():
    return Data(256), Data(32)


def loss(outputs, targets):
    if torch.is_grad_enabled():
        outputs, targets = acts.point("loss", outputs, targets)
    return nn.functional.cross_entropy(outputs, targets, reduction="sum"), len(targets)


class Optimizer(torch.optim.SGD):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        acts.steps = 0  # the check before the first step has optimizers of its own

    def step(self, closure=None):
        acts.point("optimizer")
        super().step(closure)
        acts.step_done()
