"""Scripts that train to their end although something is wrong are reported, their right twins are not."""

from __future__ import annotations

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_scripts

_MODEL = """
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
x = torch.randn(32, 8)
y = x[:, :1]
def loss_of(model=net):
    return nn.functional.mse_loss(model(x), y)
"""
_SCALED = """
optimizer = torch.optim.SGD(net.parameters(), 0.05)
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
for _ in range(30):
    optimizer.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = loss_of()
    scaler.scale(loss).backward()
    {before_clip}
    nn.utils.clip_grad_norm_(net.parameters(), {limit})
    scaler.step(optimizer)
    scaler.update()
"""
_STEPS = """
optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
for step in range(60):
    {first}
    loss_of().backward()
    {between}
    optimizer.step()
    {last}
"""
_PROJECTED = """
    grads = [p.grad.clone() for p in net.parameters()]
    optimizer.zero_grad(set_to_none={to_none})
    for p, grad in zip(net.parameters(), grads):
        if p.grad is None:
            p.grad = grad / 2
        else:
            p.grad.copy_(grad / 2)
"""
_FUSED = """
optimizers = {p: torch.optim.SGD([p], 0.01) for p in net.parameters()}
def step(p):
    optimizers[p].step()
    optimizers[p].zero_grad()
for p in net.parameters():
    p.register_post_accumulate_grad_hook(step)
for _ in range(60):
    loss_of().backward()
"""
_RARELY = """
optimizer = torch.optim.SGD(net[0].parameters(), 0.01)
second = torch.optim.SGD(net[3].parameters(), 0.01)
for step in range(60):
    net.zero_grad(); loss_of().backward(); optimizer.step()
    if {when}:
        second.step()
"""
_CUT = """
class Cut(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.back = nn.Linear(8, 16), nn.Linear(16, 1)
        self.unused = nn.Linear(3, 3)
    def forward(self, x):
        hidden = self.front(x).relu()
        return self.back({hidden})
net = Cut()
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(40):
    optimizer.zero_grad(); loss_of(net).backward(); optimizer.step()
"""
_CHECKPOINTED = """
from torch.utils.checkpoint import checkpoint
class Frozen(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16).requires_grad_(False)
        self.block, self.head = nn.Linear(16, 16), nn.Linear(16, 1)
    def forward(self, x):
        return self.head(checkpoint(self.block, self.embed(x), use_reentrant={reentrant}))
net = Frozen()
optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.01)
for _ in range(40):
    optimizer.zero_grad(); loss_of(net).backward(); optimizer.step()
"""
_ADAPTER = """
from torch.utils.checkpoint import checkpoint
class Adapted(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_({base_trains})
        self.down = nn.Parameter(torch.randn(2, 16))
    def forward(self, x):
        return self.base(x){use}
net = nn.ModuleList([nn.Linear(8, 16).requires_grad_(False), Adapted(), nn.Linear(16, 1)])
optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.01)
for _ in range(40):
    hidden = {hidden}
    optimizer.zero_grad(); net[2](hidden).square().mean().backward(); optimizer.step()
"""
_ADDED = " + x @ self.down.T @ self.down"
_HEAD = """
{early}
net[3] = nn.Linear(16, 1)
{late}
for _ in range(30):
    net.zero_grad(); loss_of().backward(); optimizer.step()
"""
_COPY = """
import copy
model = net
optimizer = torch.optim.SGD(net.parameters(), 0.01)
{copied}
for _ in range(30):
    model.zero_grad(); loss_of(model).backward(); optimizer.step()
"""
_MASTERS = """
import copy
masters = copy.deepcopy(net)
optimizer = torch.optim.SGD(masters.parameters(), 0.01)
for _ in range(20):
    net.zero_grad(); loss_of(net).backward()
    for master, p in zip(masters.parameters(), net.parameters()):
        master.grad = p.grad.clone()
    optimizer.step()
    net.load_state_dict(masters.state_dict())
"""
_TWICE = """
first = torch.optim.SGD(net.parameters(), 0.01)
second = torch.optim.SGD({parameters}, 0.01)
for _ in range(30):
    net.zero_grad(); loss_of().backward(); first.step(); {between}; second.step()
"""
_HALF = """
net = net.to(torch.bfloat16)
x, y = x.to(torch.bfloat16), y.to(torch.bfloat16)
optimizer = torch.optim.AdamW(net.parameters(), {rate}, weight_decay=0)
for _ in range(40):
    optimizer.zero_grad(); loss_of().backward(); optimizer.step()
"""
_MODES = """
from torch.utils.data import DataLoader, TensorDataset
optimizer = torch.optim.SGD(net.parameters(), 0.01)
data = TensorDataset(x, y)
{start}
for epoch in range(4):
    for a, b in DataLoader(data, 2):
        optimizer.zero_grad(); nn.functional.mse_loss(net(a), b).backward(); optimizer.step()
    {before}
    with torch.no_grad():
        for a, b in DataLoader(data, 8):
            net(a)
    {after}
"""
_LOADED = """
state = {{"{prefix}" + key: value for key, value in net.state_dict().items()}}
net.load_state_dict(state, strict=False)
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(5):
    optimizer.zero_grad(); loss_of().backward(); optimizer.step()
"""
_SCHEDULED = """
optimizer = torch.optim.SGD(net.parameters(), 0.1)
schedule = torch.optim.lr_scheduler.{schedule}
for step in range(60):
    optimizer.zero_grad(); loss_of().backward(); optimizer.step()
    if {when}: schedule.step()
"""
_ACCUMULATED = """
optimizer = torch.optim.SGD(net.parameters(), 0.001)
for step in range(30):
    optimizer.zero_grad()
    for _ in range(4):
        (loss_of(){divided}).backward()
    optimizer.step()
"""
_CLOSURE = """
optimizer = torch.optim.LBFGS(net.parameters(), 0.1, max_iter=4)
def closure():
    optimizer.zero_grad()
    loss = loss_of()
    loss.backward()
    return loss
for _ in range(30):
    optimizer.step(closure)
"""
_ATTACKED = """
optimizer = torch.optim.SGD(net.parameters(), 0.01)
for _ in range(30):
    noise = torch.zeros_like(x, requires_grad=True)
    nn.functional.mse_loss(net(x + noise), y).backward()
    optimizer.zero_grad()
    nn.functional.mse_loss(net(x + 0.01 * noise.grad.sign()), y).backward()
    optimizer.step()
"""
_CLEAR = "optimizer.zero_grad()"

_CASES: dict[str, tuple[str, set[str]]] = {
    "clips scaled gradients": (
        _SCALED.format(before_clip="", limit="1.0"), {"clip-before-unscale"},
    ),
    "unscales first": (_SCALED.format(before_clip="scaler.unscale_(optimizer)", limit="1.0"), set()),
    "clips at a scaled limit": (_SCALED.format(before_clip="", limit="2.0**15"), set()),
    "clears first": (_STEPS.format(first=_CLEAR, between="", last=""), set()),
    "clears last": (_STEPS.format(first="", between="", last=_CLEAR), set()),
    "clears by hand": (
        _STEPS.format(first="for p in net.parameters(): p.grad = None", between="", last=""), set(),
    ),
    "clears by hand to zeros": (
        _STEPS.format(first="", between="", last="for p in net.parameters(): p.grad.data.zero_()"), set(),
    ),
    "writes gradients after clearing": (
        _STEPS.format(first="", between=_PROJECTED.format(to_none=True), last=""), set(),
    ),
    "writes into cleared gradients": (
        _STEPS.format(first="", between=_PROJECTED.format(to_none=False), last=""), set(),
    ),
    "steps each parameter within the backward pass": (_FUSED, set()),
    "never clears": (_STEPS.format(first="", between="", last=""), {"gradients-not-cleared"}),
    "clears too early": (
        _STEPS.format(first="", between="optimizer.zero_grad()", last=""),
        {"zeroed-before-step"},
    ),
    "clears the model too early": (
        _STEPS.format(first="", between="net.zero_grad(set_to_none=False)", last=""),
        {"zeroed-before-step"},
    ),
    "clears another model": (
        _STEPS.format(first="other.zero_grad()", between="", last="").replace(
            "for step", "other = nn.Linear(2, 2)\nfor step", 1
        ),
        {"gradients-not-cleared"},
    ),
    "clears too early once": (
        _STEPS.format(first="", between="if step == 30: optimizer.zero_grad()", last=_CLEAR), set(),
    ),
    "clears the model": (_STEPS.format(first="net.zero_grad()", between="", last=""), set()),
    "clears to zeros too early": (
        _STEPS.format(first="", between="optimizer.zero_grad(set_to_none=False)", last=""),
        {"zeroed-before-step"},
    ),
    "a cut graph": (_CUT.format(hidden="hidden.detach()"), {"no-gradient-graph"}),
    "an unused head": (_CUT.format(hidden="hidden"), set()),
    "a re-entrant checkpoint": (_CHECKPOINTED.format(reentrant=True), {"no-gradient-checkpoint"}),
    "a checkpointed adapter": (
        _ADAPTER.format(
            base_trains=False, use=_ADDED, hidden="checkpoint(net[1], net[0](x), use_reentrant=True)"
        ),
        {"no-gradient-checkpoint"},
    ),
    "a cut adapter": (
        _ADAPTER.format(base_trains=False, use=_ADDED, hidden="net[1](net[0](x)).detach()"),
        {"no-gradient-graph"},
    ),
    "an unused parameter": (_ADAPTER.format(base_trains=True, use="", hidden="net[1](net[0](x))"), set()),
    "a checkpoint": (_CHECKPOINTED.format(reentrant=False), set()),
    "a replaced head": (
        _HEAD.format(early="optimizer = torch.optim.SGD(net.parameters(), 0.01)", late=""),
        {"gradient-without-optimizer"},
    ),
    "a new head": (
        _HEAD.format(early="", late="optimizer = torch.optim.SGD(net.parameters(), 0.01)"), set(),
    ),
    "a head alone": (
        _HEAD.format(early="", late="optimizer = torch.optim.SGD(net[3].parameters(), 0.01)"), set(),
    ),
    "a forgotten head": (
        _HEAD.format(early="", late="optimizer = torch.optim.SGD(net[0].parameters(), 0.01)"),
        {"gradient-without-optimizer"},
    ),
    "a head in evaluation mode": (
        _HEAD.format(early="", late="optimizer = torch.optim.SGD(net[0].parameters(), 0.01); net[3].eval()"),
        set(),
    ),
    "norms alone": (
        _HEAD.format(
            early="net.insert(0, nn.LayerNorm(8))",
            late="optimizer = torch.optim.SGD(net[0].parameters(), 0.01)",
        ).replace("net[3]", "net[4]"),
        set(),
    ),
    "biases alone": (
        _HEAD.format(
            early="",
            late="optimizer = torch.optim.SGD([p for p in net.parameters() if p.dim() < 2], 0.01)",
        ),
        set(),
    ),
    "a copied model": (_COPY.format(copied="model = copy.deepcopy(net)"), {"optimizer-without-gradients"}),
    "a model": (_COPY.format(copied=""), set()),
    "steps twice": (
        _TWICE.format(parameters="net[3].parameters()", between="pass"), {"stepped-twice"},
    ),
    "steps in turn": (
        _TWICE.format(parameters="net[3].parameters()", between="net.zero_grad(); loss_of().backward()"),
        set(),
    ),
    "an outer optimizer": (
        _TWICE.format(
            parameters="net[3].parameters()",
            between="[setattr(p, 'grad', 0.1 * torch.ones_like(p)) for p in net[3].parameters()]",
        ),
        set(),
    ),
    "steps in turn and more rarely": (_RARELY.format(when="step % 4 == 3"), set()),
    "never steps a second optimizer": (_RARELY.format(when="False"), {"gradient-without-optimizer"}),
    "bf16 weights, low rate": (_HALF.format(rate="1e-6"), {"weights-unchanged"}),
    "bf16 weights, high rate": (_HALF.format(rate="1e-2"), set()),
    "stays in evaluation mode": (
        _MODES.format(start="", before="net.eval()", after=""), {"eval-while-training"},
    ),
    "starts in evaluation mode": (
        _MODES.format(start="net.eval()", before="", after=""), {"eval-while-training"},
    ),
    "evaluates another model": (
        _MODES.format(start="import copy; other = copy.deepcopy(net).eval()", before="", after="").replace(
            "net(a)\n", "other(a)\n"
        ),
        set(),
    ),
    "changes modes": (_MODES.format(start="", before="net.eval()", after="net.train()"), set()),
    "evaluates in training mode": (
        _MODES.format(start="", before="", after=""), {"train-while-evaluating"},
    ),
    "a prefix too much": (_LOADED.format(prefix="module."), {"nothing-loaded-with"}),
    "a prefix tried first": (
        _LOADED.format(prefix="module.").replace(
            "\noptimizer",
            "\nnet.load_state_dict({key[7:]: value for key, value in state.items()})\noptimizer",
        ),
        set(),
    ),
    "most keys fit": (
        _LOADED.format(prefix="").replace(
            "\nnet.load", "\nstate['old.3.bias'] = state.pop('3.bias')\nnet.load", 1
        ),
        set(),
    ),
    "keys that fit": (_LOADED.format(prefix=""), set()),
    "a schedule of steps by epochs": (
        _SCHEDULED.format(schedule="CosineAnnealingLR(optimizer, 60)", when="step % 20 == 19"),
        {"scheduler-steps-rarely"},
    ),
    "a schedule of epochs": (
        _SCHEDULED.format(schedule="CosineAnnealingLR(optimizer, 3)", when="step % 20 == 19"), set(),
    ),
    "a schedule of steps": (
        _SCHEDULED.format(schedule="OneCycleLR(optimizer, 0.1, total_steps=61)", when="True"), set(),
    ),
    "accumulates sums": (_ACCUMULATED.format(divided=""), {"accumulation-not-divided"}),
    "accumulates means": (_ACCUMULATED.format(divided=" / 4"), set()),
    "a closure": (_CLOSURE, set()),
    "an adversarial attack": (_ATTACKED, set()),
    "a copy of the weights": (_MASTERS, set()),
}  # fmt: skip


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    scripts = {name.replace(" ", "_"): _MODEL + script for name, (script, _) in _CASES.items()}
    return observe_scripts(scripts, tmp_path_factory.mktemp("silent"))


@pytest.mark.parametrize("name", _CASES)
def test_what_is_silently_wrong_is_reported(processes: dict[str, ObservedProcess], name: str) -> None:
    process = processes[name.replace(" ", "_")]
    assert process.status == 0, process.stderr
    assert {event.code for event in process.events_of_type(events.Anomaly)} == _CASES[name][1]
    assert process.disabled_parts() == {}


def test_an_anomaly_names_its_place(processes: dict[str, ObservedProcess]) -> None:
    def first(name: str) -> events.Anomaly:
        return processes[name.replace(" ", "_")].events_of_type(events.Anomaly)[0]

    clipped = first("clips scaled gradients")
    line = _MODEL.count("\n") + _SCALED[: _SCALED.index("nn.utils.clip")].count("\n") + 1
    assert clipped.line.endswith(f"clips_scaled_gradients.py:{line}")
    assert (clipped.step, clipped.numbers["scale"], clipped.numbers["limit"]) == (1, 2.0**14, 1.0)
    assert first("a cut graph").names == ["front.weight", "front.bias"]
    assert first("a checkpointed adapter").names == ["1.down"]
    assert first("a re-entrant checkpoint").names == ["block.weight", "block.bias"]
    replaced = first("a replaced head")
    assert replaced.names == ["3.weight", "3.bias"]
    assert (replaced.numbers["replaced"], first("a forgotten head").numbers["replaced"]) == (2, 0)
    assert first("a copied model").numbers["parameters"] == 4
    late, early = first("stays in evaluation mode"), first("starts in evaluation mode")
    assert (late.step, late.numbers["was_training"], late.names) == (17, 16, ["1 Dropout"])
    assert (early.step, early.numbers["was_training"]) == (1, 0)
    assert first("evaluates in training mode").numbers["batches"] == 4
    prefixed = first("a prefix too much")
    assert prefixed.names == ["module.", "module.0.weight", "0.weight"]
    assert (prefixed.numbers["matched"], prefixed.numbers["wanted"]) == (0, 4)
    assert first("accumulates sums").numbers["backwards"] == 4
    rare = first("a schedule of steps by epochs").numbers
    assert (rare["done"], rare["steps"], rare["scheduled"]) == (3, 60, 60)
