"""Networks of linear layers: rows, skips, gates, shared layers, several inputs, frozen and unused parts."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tests.zoo.data import CLASSES, FEATURES
from tests.zoo.registry import ADAMW, model

WIDTH = 16


def layers(count: int, width: int = WIDTH, last: int = CLASSES, first: int = FEATURES) -> list[nn.Module]:
    """`count` linear layers with GELU between them."""
    sizes = [first, *[width] * (count - 1), last]
    made: list[nn.Module] = []
    for index in range(count):
        made += [nn.Linear(sizes[index], sizes[index + 1]), nn.GELU()]
    return made[:-1]


@model("classes")
def mlp() -> nn.Module:
    return nn.Sequential(*layers(3))


@model("classes")
def mlp_deep() -> nn.Module:
    return nn.Sequential(*layers(9))


@model("classes", accumulate=2, clip=0.5)
def mlp_in_parts() -> nn.Module:
    return nn.Sequential(*layers(5))


@model("classes", optimizer=ADAMW, clip=0.3)
def mlp_adamw() -> nn.Module:
    return nn.Sequential(*layers(5))


@model("regression", "mse")
def mlp_regression() -> nn.Module:
    return nn.Sequential(*layers(5, last=3))


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(1, WIDTH), nn.Linear(WIDTH, 1)

    def forward(self, at: Tensor) -> Tensor:
        return self.down(self.up(at[:, None]).tanh())[:, 0]


@model("scalars", "mse")
def line() -> nn.Module:
    return Line()


class Residual(nn.Module):
    """`kind` is how blocks are joined: added, put beside what came before, or mixed by a gate."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        grown = WIDTH if kind == "dense" else 0
        self.enter = nn.Linear(FEATURES, WIDTH)
        self.blocks = nn.ModuleList(nn.Linear(WIDTH + index * grown, WIDTH) for index in range(5))
        self.gates = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5 * (kind == "gate")))
        self.leave = nn.Linear(WIDTH + 5 * grown, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for index, block in enumerate(self.blocks):
            made = block(hidden).tanh()
            if self.kind == "dense":
                hidden = torch.cat([hidden, made], 1)
            elif self.kind == "gate":
                open_ = self.gates[index](hidden).sigmoid()
                hidden = open_ * made + (1 - open_) * hidden
            else:
                hidden = hidden + made
        return self.leave(hidden)


@model("classes")
def residual_mlp() -> nn.Module:
    return Residual("add")


@model("classes")
def dense_skips() -> nn.Module:
    return Residual("dense")


@model("classes")
def highway() -> nn.Module:
    return Residual("gate")


class LongSkip(nn.Module):
    """The first layer's output and the raw input are used again by the last."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.middle = (
            nn.Linear(FEATURES, WIDTH),
            nn.Sequential(*layers(4, last=WIDTH, first=WIDTH)),
        )
        self.leave = nn.Linear(2 * WIDTH + FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        first = self.enter(inputs).relu()
        return self.leave(torch.cat([self.middle(first), first, inputs], 1))


@model("classes")
def long_skip() -> nn.Module:
    return LongSkip()


@model("classes")
def frozen_first_layers() -> nn.Module:
    made = nn.Sequential(*layers(6))
    for weight in made[:4].parameters():
        weight.requires_grad_(False)
    return made


@model("classes")
def frozen_last_layers() -> nn.Module:
    made = nn.Sequential(*layers(6))
    for weight in made[-3:].parameters():
        weight.requires_grad_(False)
    return made


class Shared(nn.Module):
    """One layer that is used five times."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.leave = (
            nn.Linear(FEATURES, WIDTH),
            nn.Linear(WIDTH, WIDTH),
            nn.Linear(WIDTH, CLASSES),
        )

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.enter(inputs)
        for _ in range(5):
            hidden = hidden + self.again(hidden).tanh()
        return self.leave(hidden)


@model("classes")
def layer_used_again() -> nn.Module:
    return Shared()


@model("classes")
def module_listed_twice() -> nn.Module:
    """A Sequential that holds one layer at two places."""
    again = nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(
        nn.Linear(FEATURES, WIDTH), nn.Tanh(), again, nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh(), again,
        nn.Tanh(), nn.Linear(WIDTH, CLASSES),
    )  # fmt: skip


class Encoder(nn.Module):
    """Each input goes through the same layers."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(*layers(4, last=8))
        self.head = nn.Linear(8, 8)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        return tuple(self.head(self.encoder(one)) for one in inputs)


@model("pairs", "contrastive_margin")
def siamese() -> nn.Module:
    return Encoder()


@model("triplets", "triplet_margin")
def triplet_net() -> nn.Module:
    return Encoder()


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(6, WIDTH), nn.Linear(4, WIDTH)
        self.joined = nn.Bilinear(WIDTH, WIDTH, WIDTH)
        self.leave = nn.Linear(WIDTH, CLASSES)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.leave(self.joined(self.left(left).tanh(), self.right(right).tanh()).tanh())


@model("tuples")
def two_inputs() -> nn.Module:
    return TwoInputs()


class Flags(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.of_flags, self.of_counts = nn.Linear(6, WIDTH), nn.Embedding(7, WIDTH)
        self.leave = nn.Linear(WIDTH, CLASSES)

    def forward(self, flags: Tensor, counts: Tensor) -> Tensor:
        hidden = self.of_flags(flags.to(self.leave.weight.dtype)) + self.of_counts(counts.long()).sum(1)
        return self.leave(hidden.relu())


@model("flags_and_counts")
def flags() -> nn.Module:
    return Flags()


class Weighted(nn.Module):
    """A dict's arguments, of which it needs one."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(5))

    def forward(self, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return self.net(x)


@model("dict_without_labels", "of_weighted_dict")
def weighted_dict() -> nn.Module:
    return Weighted()


class Branching(nn.Module):
    """A second head for the samples whose first number is large: some ranks have none of them."""

    def __init__(self, least: float) -> None:
        super().__init__()
        self.least = least
        self.trunk = nn.Sequential(*layers(4, last=WIDTH), nn.Tanh())
        self.usual, self.rare = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden, is_rare = self.trunk(inputs), inputs[:, 0] > self.least
        out = self.usual(hidden)
        if bool(is_rare.any()):
            out = torch.where(is_rare[:, None], self.rare(hidden), out)
        return out


@model("classes")
def used_by_some_samples() -> nn.Module:
    return Branching(1.2)


@model("classes", optimizer=ADAMW)
def used_by_no_sample() -> nn.Module:
    return Branching(50.0)


class Unused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*layers(5))
        self.spare, self.bias = nn.Linear(WIDTH, WIDTH), nn.Parameter(torch.ones(7))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.net(inputs)


@model("classes", optimizer=ADAMW)
def unused_parameters() -> nn.Module:
    return Unused()


class Hyper(nn.Module):
    """A net makes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.maker = nn.Sequential(*layers(3, last=WIDTH * CLASSES))
        self.enter = nn.Linear(FEATURES, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        made = self.maker(inputs).view(-1, CLASSES, WIDTH) / WIDTH
        return (made @ self.enter(inputs).tanh()[:, :, None])[:, :, 0]


@model("classes")
def hyper_network() -> nn.Module:
    return Hyper()


class Factors(nn.Module):
    """Users and things, with a bias of all that is a parameter of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.things = nn.Embedding(11, 8), nn.Embedding(13, 8)
        self.of_users, self.of_things = nn.Embedding(11, 1), nn.Embedding(13, 1)
        self.of_all = nn.Parameter(torch.zeros(()))

    def forward(self, user: Tensor, thing: Tensor) -> Tensor:
        alike = (self.users(user) * self.things(thing)).sum(1)
        return alike + self.of_users(user)[:, 0] + self.of_things(thing)[:, 0] + self.of_all


@model("ratings", "mse")
def factors() -> nn.Module:
    return Factors()


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(*layers(4, last=WIDTH), nn.Tanh())
        self.actor, self.critic = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, 1)

    def forward(self, seen: Tensor) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(seen)
        return self.actor(hidden), self.critic(hidden)[:, 0]


@model("episodes", "clipped_policy")
def actor_critic() -> nn.Module:
    return ActorCritic()
