"""Parameters that never get a gradient, belong to no optimizer or lose their updates are reported."""

from __future__ import annotations

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_scripts

_MODEL = """
import contextlib, copy, torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(32, 8)
y = x[:, :1]
class Net(nn.Module):
    def __init__(self, context=contextlib.nullcontext):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 16))
        self.head, self.context = nn.Linear(16, 1), context
    def forward(self, x):
        with self.context():
            hidden = self.encoder(x)
        return self.head(hidden)
def loss_of(model):
    return nn.functional.mse_loss(model(x), y)
"""
_TRAIN = """
{start}
optimizer = torch.optim.{optimizer}
for step in range(80):
    {before}
    optimizer.zero_grad(); {loss}.backward(); optimizer.step()
    {after}
"""


def _train(
    start: str,
    optimizer: str = "SGD(net.parameters(), 0.01)",
    before: str = "pass",
    after: str = "pass",
    loss: str = "loss_of(net)",
) -> str:
    return _TRAIN.format(start=start, optimizer=optimizer, before=before, after=after, loss=loss)


_DISABLED = "net = Net(torch.no_grad)"
_APART = """
net = Net()
def loss_apart():
    with torch.no_grad():
        hidden = net.encoder(x)
    return nn.functional.mse_loss(net.head(hidden), y)
"""
_TARGET = """
class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.online = Net()
        self.target = copy.deepcopy(self.online)
    def forward(self, x):
        with torch.no_grad():
            goal = self.target(x)
        return self.online(x) + 0.1 * goal
net = Agent()
def follow():
    with torch.no_grad():
        for a, b in zip(net.target.parameters(), net.online.parameters()): a.lerp_(b, 0.05)
"""
_DETACHED_TARGET = _TARGET.replace(
    "with torch.no_grad():\n            goal = self.target(x)", "goal = self.target(x).detach()"
)
_CODEBOOK = """
class Coded(Net):
    def loss(self):
        hidden = self.encoder(x)
        index = torch.cdist(hidden, self.codes.weight).argmin(1)
        code = self.codes(index).detach()
        self.codes.weight.data.lerp_(hidden.detach()[:12], 0.1)
        return nn.functional.mse_loss(self.head(hidden + (code - hidden).detach()), y)
net = Coded()
net.codes = nn.Embedding(12, 16)
"""
_AUXILIARY = """
net = Net()
net.auxiliary = nn.Linear(16, 3)
def evaluate():
    with torch.no_grad():
        net.eval(); net.auxiliary(net.encoder(x)); net.train()
"""
_FROZEN = "net = Net(); net.encoder.requires_grad_(False)"
_UNFREEZE = "step == 30 and net.encoder.requires_grad_(True)"
_TRAINABLE = "SGD([p for p in net.parameters() if p.requires_grad], 0.01)"
_ADD_GROUP = (
    "if step == 30: net.encoder.requires_grad_(True); "
    "optimizer.add_param_group({'params': list(net.encoder.parameters())})"
)
_NEW_OPTIMIZER = (
    "if step == 30: net.encoder.requires_grad_(True); optimizer = torch.optim.SGD(net.parameters(), 0.01)"
)
_SECOND_OPTIMIZER = """
second = torch.optim.SGD(net.encoder.parameters(), 0.01)
"""
_HALF = """
net = Net().to(torch.bfloat16)
x, y = x.to(torch.bfloat16), y.to(torch.bfloat16)
"""
_STOCHASTIC = """
class Stochastic(torch.optim.AdamW):
    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                gradient = p.grad.float()
                mean = state.setdefault("exp_avg", torch.zeros_like(gradient))
                square = state.setdefault("exp_avg_sq", torch.zeros_like(gradient))
                state["step"] = state.get("step", 0) + 1
                mean.lerp_(gradient, 0.1); square.lerp_(gradient ** 2, 0.001)
                change = mean / (1 - 0.9 ** state["step"])
                change /= (square / (1 - 0.999 ** state["step"])).sqrt() + 1e-12
                bits = (p.float() - group["lr"] * change).view(torch.int32)
                bits = (bits + torch.randint(0, 1 << 16, bits.shape, dtype=torch.int32)) & -65536
                p.copy_(bits.view(torch.float32))
torch.optim.Stochastic = Stochastic
"""
_UNUSED = "net = Net(); net.unused = nn.Linear(3, 3)"
_POOLED = """
class Pooled(Net):
    def forward(self, x):
        hidden = self.encoder(x)
        self.pooled = self.pooler(hidden)
        return self.head(hidden)
net = Pooled()
net.pooler = nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
"""
_CUT_LOSS = "nn.functional.mse_loss(net.head(net.pooler(net.encoder(x)).detach().repeat(1, 8)), y)"
_DETACHED = "nn.functional.mse_loss(net.head(net.encoder(x).detach()), y)"

_WRAPPED = """
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
net = Net()
{before}
wrapper = nn.parallel.DistributedDataParallel(net, find_unused_parameters=True)
{after}
"""
_CRITIC = "critic = nn.parallel.DistributedDataParallel(nn.Linear(1, 1))"
_FREEZE = "net.encoder[0].requires_grad_(False)"
_IGNORE = (
    "nn.parallel.DistributedDataParallel._set_params_and_buffers_to_ignore_for_model("
    "net, ['encoder.0.weight', 'encoder.0.bias'])"
)

_CASES: dict[str, tuple[str, set[str]]] = {
    "gradients disabled": (_train(_DISABLED), {"no-gradient-disabled"}),
    "inference mode": (
        _train("net = Net(torch.inference_mode); net.head.forward = lambda h: "
               "nn.functional.linear(h.clone(), net.head.weight, net.head.bias)"),
        {"no-gradient-disabled"},
    ),
    "disabled around a part": (_train(_APART, loss="loss_apart()"), {"no-gradient-disabled"}),
    "disabled and frozen": (_train(_DISABLED + "; net.encoder.requires_grad_(False)"), set()),
    "disabled and in evaluation mode": (_train(_DISABLED + "; net.encoder.eval()"), set()),
    "disabled and not in the optimizer": (
        _train(_DISABLED, "SGD(net.head.parameters(), 0.01)"), set(),
    ),
    "enabled": (_train("net = Net()"), set()),
    "a target network": (_train(_TARGET, after="follow()"), set()),
    "a target network that is copied rarely": (_train(_TARGET, "SGD(net.parameters(), 1e-3)"), set()),
    "a target network whose output is detached": (_train(_DETACHED_TARGET, after="follow()"), set()),
    "a codebook of moving averages": (_train(_CODEBOOK, loss="net.loss()"), set()),
    "a codebook that nothing moves": (
        _train(_CODEBOOK.replace("data.lerp_", "lerp"), loss="net.loss()"), {"no-gradient-graph"},
    ),
    "a layer for evaluation": (_train(_AUXILIARY, after="evaluate()"), set()),
    "an unused layer": (_train(_UNUSED), set()),
    "an unused output": (_train(_POOLED, loss="loss_of(net)"), set()),
    "cut off in the middle": (_train(_POOLED, loss=_CUT_LOSS), {"no-gradient-graph"}),
    "unfrozen without the optimizer": (
        _train(_FROZEN, _TRAINABLE, before=_UNFREEZE), {"gradient-without-optimizer"},
    ),
    "unfrozen in the optimizer": (_train(_FROZEN, before=_UNFREEZE), set()),
    "unfrozen and added": (_train(_FROZEN, _TRAINABLE, before=_ADD_GROUP), set()),
    "unfrozen for a new optimizer": (_train(_FROZEN, _TRAINABLE, before=_NEW_OPTIMIZER), set()),
    "unfrozen for a second optimizer": (
        _train(_FROZEN + _SECOND_OPTIMIZER, _TRAINABLE, before=_UNFREEZE, after="step < 30 or second.step()"),
        set(),
    ),
    "unfrozen and cut off": (
        _train(_FROZEN, before=_UNFREEZE, loss=_DETACHED), {"no-gradient-graph"},
    ),
    "unfrozen and disabled": (
        _train(_FROZEN + "; net.context = torch.no_grad", _TRAINABLE, before=_ADD_GROUP),
        {"no-gradient-disabled"},
    ),
    "frozen in turn": (
        _train("net = Net()", before="net.encoder.requires_grad_(step % 4 > 1)", loss="loss_of(net)"), set(),
    ),
    "wrapped": (_train(_WRAPPED.format(before="", after=""), loss="loss_of(wrapper)"), set()),
    "frozen after it was wrapped": (
        _train(_WRAPPED.format(before="", after=_FREEZE), loss="loss_of(wrapper)"), {"frozen-after-wrapping"},
    ),
    "frozen for a while after it was wrapped": (
        _train(_WRAPPED.format(before="", after=""), before="net.encoder.requires_grad_(step < 40)",
               loss="loss_of(wrapper)"),
        set(),
    ),
    "frozen as a whole": (
        _train(_WRAPPED.format(before="", after=_CRITIC),
               "SGD([*net.parameters(), *critic.parameters()], 0.01)",
               before="critic.requires_grad_(step % 2 == 0)", loss="critic(wrapper(x)).square().mean()"),
        set(),
    ),
    "frozen before it was wrapped": (
        _train(_WRAPPED.format(before=_FREEZE, after=""), loss="loss_of(wrapper)"), set(),
    ),
    "frozen and left out by the wrapper": (
        _train(_WRAPPED.format(before=f"{_FREEZE}; {_IGNORE}", after=""), loss="loss_of(wrapper)"), set(),
    ),
    "ignored and frozen afterwards": (
        _train(_WRAPPED.format(before=_IGNORE, after=_FREEZE), loss="loss_of(wrapper)"), set(),
    ),
    "bf16 under Adam": (_train(_HALF, "AdamW(net.parameters(), 1e-4)"), {"weights-unchanged"}),
    "bf16 under Adam at a higher rate": (_train(_HALF, "AdamW(net.parameters(), 1e-3)"), set()),
    "bf16 under SGD": (_train(_HALF, "SGD(net.parameters(), 0.1, momentum=0.9)"), set()),
    "bf16 with stochastic rounding": (
        _train(_STOCHASTIC + _HALF, "Stochastic(net.parameters(), 1e-4)"), set(),
    ),
    "bf16 with a warm-up": (
        _train(_HALF, "AdamW(net.parameters(), 1e-5)",
               before="optimizer.param_groups[0]['lr'] = 1e-5 * (step + 1)"),
        set(),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    scripts = {name.replace(" ", "_"): _MODEL + script for name, (script, _) in _CASES.items()}
    return observe_scripts(scripts, tmp_path_factory.mktemp("belonging"))


@pytest.mark.parametrize("name", _CASES)
def test_parameters_that_do_not_train_are_reported(processes: dict[str, ObservedProcess], name: str) -> None:
    process = processes[name.replace(" ", "_")]
    assert process.status == 0, process.stderr
    assert {event.code for event in process.events_of_type(events.Anomaly)} == _CASES[name][1]
    assert process.disabled_parts() == {}


def test_parameters_are_reported_by_name(processes: dict[str, ObservedProcess]) -> None:
    def first(name: str) -> events.Anomaly:
        return processes[name.replace(" ", "_")].events_of_type(events.Anomaly)[0]

    names = [f"encoder.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")]
    for name in ("gradients disabled", "disabled around a part", "unfrozen and disabled"):
        assert first(name).names == names
    unfrozen = first("unfrozen without the optimizer")
    assert (unfrozen.names, unfrozen.step, unfrozen.numbers["unfrozen"]) == (names, 31, 1)
    assert first("unfrozen and cut off").step == 32
    cut_off = [f"pooler.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")]
    assert first("cut off in the middle").names == names + cut_off
    assert 0.05 < first("bf16 under Adam").numbers["share"] < 0.25
