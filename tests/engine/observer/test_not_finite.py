"""When a loss becomes NaN, the observer reports what was not finite first."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_script, observe_scripts

_SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 1)
    def forward(self, hidden):
        return {head}
class Mask(nn.Module):
    def forward(self, hidden):
        return torch.zeros_like(hidden).masked_fill(hidden.detach() == 0, float("-inf"))
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask, self.body, self.head = Mask(), nn.Linear(8, 16), Head()
    def forward(self, x):
        hidden = self.body(x).relu()
        return self.head(hidden * self.mask(hidden).exp())
net = Net()
x = torch.randn(48, 8)
y = x[:, :1].clone()
{data}
optimizer = torch.optim.SGD(net.parameters(), {rate})
for step, (a, b) in enumerate(DataLoader(TensorDataset(x, y), 4), 1):
    optimizer.zero_grad()
    out = net(a)
    loss = {loss}
    loss.backward()
    {before}
    optimizer.step()
"""


def _script(
    head: str = "self.linear(hidden)",
    data: str = "",
    loss: str = "nn.functional.mse_loss(out, b)",
    before: str = "",
    rate: str = "0.01",
) -> str:
    return _SCRIPT.format(head=head, data=data, loss=loss, before=before, rate=rate)


_COUNTING_MODE = """
import torch
from contextlib import nullcontext
from torch.utils._python_dispatch import TorchDispatchMode
class Counting(TorchDispatchMode):
    count = 0
    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.count += 1
        return operation(*args, **(kwargs or {}))
mode = Counting()
"""
_LATE_LOG = "self.linear(hidden).abs() if step != 5 else (self.linear(hidden) - 99).log()"
_SCRIPTS = {
    "batch": _script(data="x[17, 3] = float('nan')"),
    "weights": _script(before="if step == 4: net.head.linear.weight.grad[:] = float('inf')"),
    "diverged": _script(rate="1e18"),
    "forward": _script(_LATE_LOG),
    "gradient": _script(
        loss="nn.functional.mse_loss(out, b) + ((out * 0).square().sum().sqrt() if step == 6 else 0)"
    ),
    "healthy": _script(),
    "skipped": _script(
        before="if step == 4: net.head.linear.weight.grad[:] = float('inf')\n    if step == 4: continue"
    ),
}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    return observe_scripts(_SCRIPTS, tmp_path_factory.mktemp("finite"))


def _report(process: ObservedProcess) -> events.Anomaly:
    assert process.status == 0, process.stderr
    (event,) = [e for e in process.events_of_type(events.Anomaly) if e.code == "not-finite"]
    return event


@pytest.mark.parametrize(
    ("name", "step", "is_loss", "numbers", "names"),
    [
        ("batch", 5, 1, {"batch": 1, "weights": 0, "examined": 5}, []),
        ("weights", 4, 0, {"weights": 0, "gradients": 1, "batch": 0}, ["head.linear.weight"]),
        ("forward", 5, 1, {"weights": 0, "batch": 0}, []),
        ("gradient", 6, 0, {"weights": 0, "gradients": 4}, ["head.linear.bias", "head.linear.weight"]),
    ],
)  # fmt: skip
def test_what_was_not_finite_first_is_reported(
    processes: dict[str, ObservedProcess],
    name: str,
    step: int,
    is_loss: int,
    numbers: dict[str, float],
    names: list[str],
) -> None:
    event = _report(processes[name])
    assert (event.step, event.numbers["loss"]) == (step, is_loss)
    assert {key: event.numbers[key] for key in numbers} == numbers
    assert not names or event.names[: len(names)] == names
    assert processes[name].disabled_parts() == {}


def test_diverging_weights_are_reported(processes: dict[str, ObservedProcess]) -> None:
    event = _report(processes["diverged"])
    assert event.step <= 4 and event.names


@pytest.mark.parametrize("name", ["healthy", "skipped"])
def test_finite_trainings_are_not_reported(processes: dict[str, ObservedProcess], name: str) -> None:
    assert processes[name].status == 0, processes[name].stderr
    assert processes[name].events_of_type(events.Anomaly) == []


@pytest.mark.parametrize("level", ["full", "check"])
@pytest.mark.parametrize("step", [4, 5, 8])
def test_full_observation_names_the_first_module(tmp_path: Path, step: int, level: str) -> None:
    """In steps 4 and 5, the memory ledger's mode is active."""
    event = _report(observe_script(_script(_LATE_LOG.replace("5", str(step))), tmp_path, level=level))
    # Not the mask, whose output is infinite in healthy steps too; its input was finite.
    assert (event.step, event.names, event.numbers["module"]) == (step, ["head (Head)"], 2)


@pytest.mark.parametrize("level", ["light", "full"])
def test_full_observation_reports_that_all_outputs_are_finite(tmp_path: Path, level: str) -> None:
    """The mean over no sample is NaN; the model's outputs are finite."""
    script = _script(loss="(out - b).square()[step == 4 and 4 or 0:].mean()")
    event = _report(observe_script(script, tmp_path, level=level))
    assert (event.step, event.numbers["weights"]) == (4, 0)
    assert ("outputs" in event.numbers) is (level == "full")


def test_a_mode_of_the_script_meets_no_operation_of_the_observer(tmp_path: Path) -> None:
    """In step 4, two modes are active: the memory ledger's and the script's, which counts operations."""
    script = (
        _script(_LATE_LOG.replace("5", "4"))
        .replace("import torch\n", _COUNTING_MODE, 1)
        .replace(
            "    out = net(a)\n    loss",
            "    with mode if step == 4 else nullcontext():\n      out = net(a)\n      loss",
        )
        + "print(mode.count)"
    )
    observed = observe_script(script, tmp_path, level="full")
    alone = observe_script(script, tmp_path, level="none")
    assert observed.status == alone.status == 0, observed.stderr
    assert observed.stdout == alone.stdout and int(alone.stdout) > 0
