"""Scripts in which something grows with every step are reported with the line that adds to it; scripts whose
memory may grow, or does not, are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_script, observe_scripts

_MODEL = """
import collections
import gc
import torch
from torch import nn
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
x = torch.randn(32, 8)
y = x[:, :1]
optimizer = torch.optim.SGD(net.parameters(), 1e-3)
class Box:
    def __init__(self):
        self.stored = []
box = Box()
"""
_LOOP = """
{before}
for step in range(230):
    out = net(x)
    loss = nn.functional.mse_loss(out, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    {after}
"""
_STATE = """
cell = nn.Linear(8, 8).requires_grad_(False)
state = torch.zeros(32, 8, requires_grad=True)
for step in range(230):
    {cut}
    state = torch.tanh(cell(state))
    loss = nn.functional.mse_loss(net(x + state), y)
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    with torch.no_grad():
        for p in net.parameters():
            p.data = p.data.clone()
    optimizer.step()
"""
_PENALTY = """
for step in range(230):
    inputs = x.clone().requires_grad_()
    out = net(inputs)
    (slope,) = torch.autograd.grad(out.sum(), inputs, create_graph=True)
    optimizer.zero_grad()
    (nn.functional.mse_loss(out, y) + slope.pow(2).mean()).backward()
    optimizer.step()
"""
_EPOCHS = """
for epoch in range(3):
    losses = []
    for step in range(90):
        loss = nn.functional.mse_loss(net(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append({loss})
    print(sum(losses))
"""
_CYCLES = """
gc.disable()
class Result:
    def __init__(self, loss):
        self.loss, self.itself = loss, self
"""
_SHARED = """
scale = torch.zeros(1, requires_grad=True)
shared = (scale * 2).exp()
for step in range(230):
    loss = nn.functional.mse_loss(net(x) * shared, y)
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
"""
_CHUNKS = """
state = torch.zeros(32, 8)
cell = nn.Linear(8, 8)
optimizer.add_param_group({"params": list(cell.parameters())})
for step in range(230):
    state = state.detach()
    for _ in range(4):
        state = torch.tanh(cell(state) + x)
    loss = nn.functional.mse_loss(net(state), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_ADVERSARIES = """
second = nn.Linear(8, 1)
other = torch.optim.SGD(second.parameters(), 1e-3)
for step in range(230):
    for _ in range(3):
        other.zero_grad()
        second(x).mean().backward()
        other.step()
    loss = nn.functional.mse_loss(net(x), y) + second(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
_REUSED = "class Reused(Box):\n    def reset(self): self.stored = []\nbox = Reused()"
_LIMITED = "box.capacity = 10_000"
_DATASET = (
    "class Samples(Box):\n    def __len__(self): return 10_000\n"
    "    def __getitem__(self, index): return index\n"
    "box = Samples()"
)
_LOG = _DATASET.replace("10_000", "len(self.stored)")
_IMAGE = "torch.randn(128, 1024)"


def _in_function(script: str) -> str:
    return "def main():\n" + "".join(f"    {line}\n" for line in script.splitlines()) + "main()\n"


def _loop(after: str, before: str = "") -> str:
    return _LOOP.format(before=before, after=after)


_FAULTS: dict[str, tuple[str, str, str, str]] = {
    "sum of losses": (_loop("total += loss", "total = 0.0"), "graphs-retained-chain", "total", "total +="),
    "mean of losses": (
        _loop("mean = 0.9 * mean + 0.1 * loss", "mean = 0.0"), "graphs-retained-chain", "mean", "mean = 0.9",
    ),
    "sum in a function": (
        _in_function(_loop("total += loss", "total = 0.0")), "graphs-retained-chain", "total", "total +=",
    ),
    "list of losses": (
        _loop("losses.append(loss)", "losses = []"), "graphs-retained-container", "losses", "losses.append",
    ),
    "list in a function": (
        _in_function(_loop("losses.append(loss)", "losses = []")),
        "graphs-retained-container", "losses", "losses.append",
    ),
    "list of an object": (
        _loop("box.stored.append(loss)"), "graphs-retained-container", "Box.stored", "box.stored.append",
    ),
    "lists in a dictionary": (
        _loop('log["loss"].append(loss)', "log = collections.defaultdict(list)"),
        "graphs-retained-container", "log['loss']", 'log["loss"]',
    ),
    "outputs": (
        _loop("outputs.append((out, y))", "outputs = []"),
        "graphs-retained-container", "outputs", "outputs.app",
    ),
    "carried state": (_STATE.format(cut=""), "graphs-retained-chain", "state", "state = torch.tanh"),
    "hooks": (
        _loop("net[0].register_forward_hook(hook)", "def hook(*_): pass"),
        "growing-hooks", "hook", "def hook",
    ),
    "hooks of a tensor": (
        _loop("net[0].weight.register_hook(lambda g: g)"), "growing-hooks", "<lambda>", "register_hook",
    ),
    "parameter groups": (
        _loop('optimizer.add_param_group({"params": [nn.Parameter(x.clone())]})'),
        "growing-parameters", "", "",
    ),
    "states of replaced parameters": (
        _loop(
            "net[2].bias = nn.Parameter(net[2].bias.detach().clone()); "
            'optimizer.param_groups[0]["params"][3] = net[2].bias',
            "optimizer = torch.optim.AdamW(net.parameters())",
        ),
        "growing-states", "", "",
    ),
    "threads": (
        _loop(
            "threading.Thread(target=event.wait, daemon=True).start()",
            "import threading; event = threading.Event()",
        ),
        "growing-threads", "", "",
    ),
    "images": (_loop(f"images.append({_IMAGE})", "images = []"), "growing-memory", "images", "images.append"),
    "arrays": (
        _loop(f"images.append(({_IMAGE}.numpy(), step))", "images = []"),
        "growing-memory", "images", "images.append",
    ),
    "images in a log with a length": (
        _loop(f"box.stored.append({_IMAGE})", _LOG), "growing-memory", "Samples.stored", "box.stored.append",
    ),
    "images in a function": (
        _in_function(_loop(f"images.append({_IMAGE})", "images = []")),
        "growing-memory", "images", "images.append",
    ),
}  # fmt: skip
_HEALTHY = {
    "numbers": _loop("losses.append(loss.item())", "losses = []"),
    "detached losses": _loop("losses.append(loss.detach())", "losses = []"),
    "detached sum": _loop("total += loss.detach()", "total = 0.0"),
    "detached outputs": _loop("outputs.append(out.detach())", "outputs = []"),
    "a window of losses": _loop("window.append(loss)", "window = collections.deque(maxlen=100)"),
    "a long window of losses": _loop("window.append(loss)", "window = collections.deque(maxlen=1000)"),
    "losses of an epoch": _EPOCHS.format(loss="loss"),
    "a detached state": _STATE.format(cut="state = state.detach()"),
    "truncated steps through time": _CHUNKS,
    "a gradient penalty": _PENALTY,
    "a graph in common": _SHARED,
    "cycles without garbage collection": _loop("Result(loss)", _CYCLES),
    "two models in turn": _ADVERSARIES,
    "a hook per step": _loop("net[0].register_forward_hook(lambda *_: None).remove()"),
    "hooks once": _loop(
        "pass", "for m in net: [m.register_forward_hook(lambda *_: None) for _ in range(200)]"
    ),
    "a replay buffer with a capacity": _loop(f"box.stored.append({_IMAGE})", _LIMITED),
    "a replay buffer with a limit": _loop(
        f"replay.append({_IMAGE})", "replay = collections.deque(maxlen=10_000)"
    ),
    "a dataset that keeps its samples": _loop(f"box.stored.append({_IMAGE}); box[step]", _DATASET),
    "a metric with a state": _loop(f"box.stored.append({_IMAGE})", _REUSED),
    "a cache of an epoch": _loop(f"cache[step % 100] = cache.get(step % 100, {_IMAGE})", "cache = {}"),
    "an array that fills": _loop(
        "array[step] = 1.0", "import numpy; array = numpy.zeros((1000, 128 * 1024))"
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    scripts = {name: fault[0] for name, fault in _FAULTS.items()} | _HEALTHY
    texts = {name.replace(" ", "_"): _MODEL + script for name, script in scripts.items()}
    # Run from files, because the line that adds to a container is found in the source.
    files = {
        name: f"open('script.py', 'w').write({text!r})\n"
        "exec(compile(open('script.py').read(), 'script.py', 'exec'))\n"
        for name, text in texts.items()
    }
    return observe_scripts(files, tmp_path_factory.mktemp("growth"))


def _anomalies(process: ObservedProcess) -> list[events.Anomaly]:
    assert process.status == 0, process.stderr
    assert (process.disabled_parts(), process.stderr) == ({}, "")
    return process.events_of_type(events.Anomaly)


@pytest.mark.parametrize("name", _FAULTS)
def test_what_grows_with_every_step_is_reported_after_200_steps(
    processes: dict[str, ObservedProcess], name: str
) -> None:
    script, code, variable, statement = _FAULTS[name]
    (anomaly,) = _anomalies(processes[name.replace(" ", "_")])
    assert (anomaly.code, anomaly.names[0]) == (code, variable)
    assert anomaly.step + anomaly.numbers.get("steps", 0) <= 200
    if statement:
        number = int(anomaly.line.rpartition(":")[2])
        assert statement in (_MODEL + script).splitlines()[number - 1]


@pytest.mark.parametrize("name", _HEALTHY)
def test_what_may_grow_is_not_reported(processes: dict[str, ObservedProcess], name: str) -> None:
    assert _anomalies(processes[name.replace(" ", "_")]) == []


def test_numbers_say_how_much_grows(processes: dict[str, ObservedProcess]) -> None:
    def numbers(name: str) -> dict[str, float]:
        return _anomalies(processes[name.replace(" ", "_")])[0].numbers

    losses = numbers("list of losses")
    assert 128 <= losses["graphs"] <= losses["elements"] <= 200 and losses["first"] <= 16
    images = numbers("images")
    assert images["new"] == 1 and images["element_bytes"] == 128 * 1024 * 4
    assert images["slope"] == pytest.approx(128 * 1024 * 4, rel=0.1)
    hooks = numbers("hooks")
    assert hooks["after"] - hooks["before"] == hooks["steps"] == 96


@pytest.mark.parametrize("level", ["light", "check"])
def test_graphs_are_found_if_every_step_is_sampled(tmp_path: Path, level: str) -> None:
    """Under check, and in light observation if a step takes longer than the interval of samples."""
    process = observe_script(_MODEL + _FAULTS["sum of losses"][0], tmp_path, level=level)
    assert [anomaly.code for anomaly in _anomalies(process)] == ["graphs-retained-chain"]


def test_graphs_are_freed_as_without_the_observer(tmp_path: Path) -> None:
    script = _MODEL + _loop(
        "live.append(sum(type(t) is torch.Tensor and t.grad_fn is not None for t in gc.get_objects()))",
        "live = []",
    )
    script += "\nprint(live[20:], [p.sum().item() for p in net.parameters()])\n"
    alone, observed = (observe_script(script, tmp_path / level, level=level) for level in ("none", "light"))
    assert observed.stdout == alone.stdout != "" and observed.status == 0
