"""Modules that train in the wrong mode are reported, modes that a script sets on purpose are not."""

from __future__ import annotations

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_scripts

_MODEL = """
import copy, torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(32, 8)
y = x[:, :1]
class Encoder(nn.Module):
    def __init__(self, norm=False):
        super().__init__()
        self.front = nn.Linear(8, 16)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.dropout, self.back = nn.Dropout(0.1), nn.Linear(16, 16)
    def forward(self, x):
        return self.back(self.dropout(self.norm(self.front(x)).relu())).relu()
class Norms(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU())
class Net(nn.Module):
    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder
        self.head = nn.Sequential(nn.Dropout(0.1), nn.Linear(16, 1))
    def forward(self, x):
        return self.head(self.encoder(x))
def loss_of(model):
    return nn.functional.mse_loss(model(x), y)
"""
_TRAIN = """
{start}
parameters = [p for p in net.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(parameters, 0.01)
for epoch in range(8):
    {epoch}
    for _ in range(8):
        optimizer.zero_grad()
        {step}
        optimizer.step()
    {evaluate}
"""
_STEP = "loss_of(net).backward()"


def _train(start: str, epoch: str = "pass", evaluate: str = "pass", step: str = _STEP) -> str:
    return _TRAIN.format(start=start, epoch=epoch, step=step, evaluate=evaluate)


_NET = "net = Net(Encoder())"
_NORM_NET = "net = Net(Encoder(norm=True))"
_NO_GRAD = "torch.set_grad_enabled(False); {}; torch.set_grad_enabled(True)"
_EVALUATE = _NO_GRAD.format("{}; net(x)")
_PRETRAINED = """
encoder = Encoder()
encoder.eval()
net = Net(encoder)
"""
_FREEZE_NORMS = "[m.eval() for m in net.modules() if isinstance(m, nn.BatchNorm1d)]"
_OWN_TRAIN = """
class Fixed(Net):
    def train(self, mode=True):
        super().train(mode)
        self.encoder.eval()
        return self
net = Fixed(Encoder()).train()
"""
_TEACHER = """
teacher = copy.deepcopy(net.encoder).eval()
net.teacher = teacher
average = copy.deepcopy(net).eval()
"""
_TEACH = "loss = loss_of(net)\n        with torch.no_grad(): teacher(x); average(x)\n        loss.backward()"
_LARGER = """
class System(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = Net(Encoder())
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)
    def forward(self, x):
        raise NotImplementedError
system = System()
net = system.net
"""
_LOADER = """
from torch.utils.data import DataLoader, TensorDataset
loader = DataLoader(TensorDataset(x, y), 8)
def evaluate():
    with torch.no_grad():
        for a, _ in loader: net(a)
"""
_FETCH = """
batches = iter(loader)
def fetch():
    global batches
    with torch.no_grad():
        if next(batches, None) is None: batches = iter(loader)
"""
_SET_MOMENTUM = """
def set_momentum(value):
    for module in net.modules():
        if isinstance(module, nn.BatchNorm1d): module.momentum = value
"""
_HALVES = """
def evaluate():
    net.eval()
    with torch.no_grad(): net(x)
    net.head.train()
"""
_PSEUDO = (
    "loss = loss_of(net); net.encoder.eval()\n        with torch.no_grad(): net(x)\n        loss.backward()"
)
_LAYERS = "layers-eval-while-training"

_CASES: dict[str, tuple[str, set[str]]] = {
    "an encoder is not restored": (
        _train(_NET, evaluate=_EVALUATE.format("net.encoder.eval()")), {_LAYERS},
    ),
    "norms are not restored": (
        _train("net = Net(Norms())", evaluate=_EVALUATE.format("net.encoder.train(False)")), {_LAYERS},
    ),
    "only the head is restored": (_train(_NET + _HALVES, evaluate="evaluate()"), {_LAYERS}),
    "blocks are not restored": (
        _train(
            "net = Net(nn.Sequential(Encoder(), nn.Linear(16, 8), Encoder()))",
            evaluate=_EVALUATE.format("[b.eval() for b in net.encoder]"),
        ),
        {_LAYERS},
    ),
    "an encoder is not restored after a loader": (
        _train(_NET + _LOADER, evaluate="net.eval(); evaluate(); net.head.train()"), {_LAYERS},
    ),
    "late and not restored": (
        _train(_NET, epoch="import time; time.sleep(0.3 * (epoch == 4))",
               evaluate=_EVALUATE.format("epoch == 5 and net.encoder.eval()")),
        {_LAYERS},
    ),
    "a pretrained encoder": (_train(_PRETRAINED), {_LAYERS}),
    "a pretrained encoder and train": (_train(_PRETRAINED + "net.train()"), set()),
    "restored": (
        _train(_NORM_NET, evaluate=_EVALUATE.format("net.encoder.eval()") + "; net.train()"), set(),
    ),
    "all restored": (_train(_NORM_NET, evaluate=_EVALUATE.format("net.eval()") + "; net.train()"), set()),
    "frozen norms": (_train(_NORM_NET + "\n" + _FREEZE_NORMS), set()),
    "norms frozen late": (
        _train(_NORM_NET, epoch="net.train(); epoch < 3 or " + _FREEZE_NORMS,
               evaluate=_EVALUATE.format("net.eval()")),
        set(),
    ),
    "a frozen encoder": (
        _train(_NORM_NET + "\nnet.encoder.requires_grad_(False)", epoch="net.train(); net.encoder.eval()",
               evaluate=_EVALUATE.format("net.eval()")),
        set(),
    ),
    "a frozen model with a head": (
        _train(_NORM_NET + "\nnet.eval(); net.encoder.requires_grad_(False)\nnet.head = nn.Linear(16, 1)"),
        set(),
    ),
    "a frozen model with an old head": (
        _train("net = Net(Norms()); net.head = nn.Linear(16, 1)\n"
               "net.encoder.requires_grad_(False); net.eval()"),
        set(),
    ),
    "an encoder in evaluation mode on purpose": (
        _train(_NET, epoch="net.train(); net.encoder.eval()", evaluate=_EVALUATE.format("net.eval()")),
        set(),
    ),
    "an encoder in evaluation mode from later on": (
        _train(_NORM_NET, epoch="net.train(); epoch > 0 and net.encoder.eval()",
               evaluate=_EVALUATE.format("net.eval()")),
        set(),
    ),
    "an encoder switched once": (_train(_NET + "; net.encoder.eval()"), set()),
    "norms of an encoder switched before it is built in": (
        _train("encoder = Norms().eval(); net = Net(encoder)"), set(),
    ),
    "a method of its own": (_train(_OWN_TRAIN, evaluate=_EVALUATE.format("net.encoder.eval()")), set()),
    "teachers": (_train(_NET + _TEACHER, step=_TEACH), set()),
    "a feature extractor": (
        _train(_NET + "; features = Encoder().eval()",
               step="(loss_of(net) + features(net(x).expand(-1, 8)).mean()).backward()"),
        set(),
    ),
    "pseudo-labels": (_train(_NET, epoch="net.train()", step="net.train(); " + _PSEUDO), set()),
    "no dropout": (
        _train(_NET + "\n[m.eval() for m in net.modules() if isinstance(m, nn.Dropout)]"), set(),
    ),
    "dropout in an evaluation": (
        _train(
            _NET,
            evaluate=_EVALUATE.format(
                "net.eval(); [m.train() for m in net.modules() if isinstance(m, nn.Dropout)]"
            ) + "; net.train()",
        ),
        set(),
    ),
    "part of a larger module": (
        _train(_LARGER, evaluate=_EVALUATE.format("net.eval()")), {"eval-while-training"},
    ),
    "part of a larger module and restored": (
        _train(_LARGER, evaluate=_EVALUATE.format("net.eval()") + "; net.train()"), set(),
    ),
    "part of a larger module in training mode": (
        _train(_LARGER + _LOADER, evaluate="evaluate()"), {"train-while-evaluating"},
    ),
    "batch norms of averaged weights": (
        _train(_NORM_NET + _LOADER, evaluate="torch.optim.swa_utils.update_bn(loader, net)"), set(),
    ),
    "batch norms whose statistics are averaged by hand": (
        _train(_NORM_NET + _LOADER + _SET_MOMENTUM,
               evaluate="set_momentum(1.0); evaluate(); set_momentum(0.1)"),
        set(),
    ),
    "batches fetched without gradients": (
        _train(_NET + _LOADER + _FETCH, step="fetch(); loss_of(net).backward()"), set(),
    ),
    "compiled": (
        _train(_NET + "; compiled = torch.compile(net, backend='eager')", step="loss_of(compiled).backward()",
               evaluate="net.eval()"),
        {"eval-while-training"},
    ),
    "compiled and not restored": (
        _train(_NET + _LOADER + "compiled = torch.compile(net, backend='eager')",
               step="loss_of(compiled).backward()",
               evaluate="net.encoder.eval(); evaluate(); net.head.train()"),
        {_LAYERS},
    ),
    "an LSTM": (
        _train("net = nn.Sequential(nn.LSTM(8, 8, 2, dropout=0.5))\n"
               "net.forward = lambda x: net[0](x)[0][:, :1]\nnet.eval()"),
        {"eval-while-training"},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    scripts = {name.replace(" ", "_"): _MODEL + script for name, (script, _) in _CASES.items()}
    return observe_scripts(scripts, tmp_path_factory.mktemp("modes"))


@pytest.mark.parametrize("name", _CASES)
def test_only_unintended_modes_are_reported(processes: dict[str, ObservedProcess], name: str) -> None:
    process = processes[name.replace(" ", "_")]
    assert process.status == 0, process.stderr
    assert {event.code for event in process.events_of_type(events.Anomaly)} == _CASES[name][1]
    assert process.disabled_parts() == {}


def test_an_unintended_mode_is_reported_with_its_cause(processes: dict[str, ObservedProcess]) -> None:
    def first(name: str) -> events.Anomaly:
        return processes[name.replace(" ", "_")].events_of_type(events.Anomaly)[0]

    left = first("an encoder is not restored")
    script = _MODEL + _CASES["an encoder is not restored"][0]
    line = script[: script.index("net.encoder.eval()")].count("\n") + 1
    assert left.line.endswith(f"an_encoder_is_not_restored.py:{line}")
    assert (left.step, left.numbers["was_training"], left.names) == (9, 8, ["encoder", "1 Dropout"])
    assert first("norms are not restored").names == ["encoder", "1 BatchNorm1d"]
    assert first("blocks are not restored").names == ["encoder.0, encoder.2", "2 Dropout"]
    assert first("late and not restored").step == 49
    pretrained = first("a pretrained encoder")
    assert (pretrained.step, pretrained.numbers["was_training"]) == (1, 0)
    assert (
        "encoder.eval()"
        in (_MODEL + _CASES["a pretrained encoder"][0]).splitlines()[
            int(pretrained.line.rpartition(":")[2]) - 1
        ]
    )
    assert first("part of a larger module").names == ["2 Dropout"]
    assert first("an LSTM").names == ["1 LSTM"]
