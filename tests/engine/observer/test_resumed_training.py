"""A training that continues from a file without the optimizer's or the scheduler's state is reported; a
fine-tuning that starts from the same file, and a complete resume, are not."""

from __future__ import annotations

import pytest

from rankdeck import events
from tests.helpers.observed_process import ObservedProcess, observe_scripts

_START = """
import torch
from torch import nn
torch.manual_seed(0)
x = torch.randn(32, 8)
def build(optimizer=torch.optim.AdamW, **options):
    global net, opt, plan
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    opt = optimizer(net.parameters(), lr=0.01, **options)
    plan = torch.optim.lr_scheduler.LambdaLR(opt, lambda n: min(1, n / 40))
def train():
    opt.zero_grad(); nn.functional.mse_loss(net(x), x[:, :1]).backward(); opt.step(); plan.step()
build()
state = {"model": net.state_dict(), "step": 120, "epoch": 6}
earlier = torch.optim.AdamW(net.parameters())
for p in net.parameters():
    earlier.state[p] = {
        "step": torch.tensor(120.0), "exp_avg": torch.zeros_like(p), "exp_avg_sq": torch.ones_like(p)
    }
whole = {**state, "optimizer": earlier.state_dict(), "scheduler": {**plan.state_dict(), "last_epoch": 120}}
torch.save(state, "half.pt")
torch.save(whole, "whole.pt")
build()
"""
_LOAD = """
saved = torch.load("{file}.pt")
net.load_state_dict(saved["model"])
"""
_STEPS = "for step in range(saved['step'], saved['step'] + 30): train()"
# After the first 20 steps, only some steps are sampled, so an epoch must last.
_EPOCHS = """
import time
for epoch in range(saved["epoch"] + 1, 10):
    for _ in range(20): train(); time.sleep(0.06)
"""
_IN_FUNCTION = """
def main():
    saved = torch.load("half.pt", weights_only=True)
    net.load_state_dict({key: value for key, value in saved["model"].items()})
    step = saved["step"]
    while step < 150:
        train(); step += 1
main()
"""
_IN_TRAINER = """
class Trainer:
    def __init__(self):
        saved = torch.load("whole.pt")
        net.load_state_dict(saved["model"])
        self.global_step = saved["step"]
    def fit(self):
        for _ in range(30):
            train(); self.global_step += 1
Trainer().fit()
"""
_FINE_TUNED = """
epoch = saved["epoch"]
print("from epoch", epoch, "step", saved["step"])
start_step = saved["step"]
for epoch in range(3):
    for step in range(20): train()
"""
_OPTIMIZER, _PLAN = "opt.load_state_dict(saved['optimizer'])\n", "plan.load_state_dict(saved['scheduler'])\n"
_FORWARD = "for _ in range(saved['step']): plan.step()\n"
_BOTH = {"resume-without-optimizer", "resume-without-scheduler"}
_HALF, _WHOLE = _LOAD.format(file="half"), _LOAD.format(file="whole")

_CASES: dict[str, tuple[str, set[str]]] = {
    "weights and step": (_HALF + _STEPS, _BOTH),
    "weights and epoch": (_HALF + _EPOCHS, _BOTH),
    "in a function": (_IN_FUNCTION, _BOTH),
    "in a trainer": (_IN_TRAINER, _BOTH),
    "the optimizer only": (_WHOLE + _OPTIMIZER + _STEPS, {"resume-without-scheduler"}),
    "the scheduler only": (_WHOLE + _PLAN + _STEPS, {"resume-without-optimizer"}),
    "the scheduler only, counted anew": (
        _WHOLE + _PLAN + "for _ in range(30): train()", {"resume-without-optimizer"},
    ),
    "another optimizer": (
        _WHOLE + _OPTIMIZER + "opt = torch.optim.AdamW(net.parameters())\n" + _STEPS,
        {"resume-without-optimizer"},
    ),
    "the optimizer, the scheduler set in each epoch": (
        _WHOLE + _OPTIMIZER + _EPOCHS + "    plan.step(epoch)\n", set(),
    ),
    "both": (_WHOLE + _OPTIMIZER + _PLAN + _STEPS, set()),
    "the optimizer, the scheduler by hand": (_WHOLE + _OPTIMIZER + _FORWARD + _STEPS, set()),
    "the optimizer, the scheduler set in each step": (
        _WHOLE + _OPTIMIZER + _STEPS.replace("train()", "plan.step(step); train()"), set(),
    ),
    "SGD, the scheduler": (
        _WHOLE + "build(torch.optim.SGD)\n" + _HALF + _FORWARD + _STEPS, set(),
    ),
    "fine-tuned": (_WHOLE + _FINE_TUNED, set()),
    "fine-tuned in steps": (_HALF + "for step in range(150): train()", set()),
    "fine-tuned with a new head": (
        "saved = torch.load('whole.pt')\n"
        "net[0].load_state_dict({k[2:]: v for k, v in saved['model'].items() if k[0] == '0'})\n" + _STEPS,
        set(),
    ),
    "from an earlier step of its own": (
        "for step in range(25): train()\n" + _HALF + _STEPS, {"weights-loaded"},
    ),
    "never loaded": ("saved = torch.load('half.pt')\n" + _STEPS, set()),
    "only weights": (
        "torch.save(net.state_dict(), 'w.pt')\nnet.load_state_dict(torch.load('w.pt'))\n"
        "for step in range(120, 150): train()",
        set(),
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ObservedProcess]:
    scripts = {name.replace(" ", "_"): _START + script for name, (script, _) in _CASES.items()}
    return observe_scripts(scripts, tmp_path_factory.mktemp("resumed"))


def _anomalies(processes: dict[str, ObservedProcess], name: str) -> list[events.Anomaly]:
    process = processes[name.replace(" ", "_")]
    assert process.status == 0, process.stderr
    assert process.disabled_parts() == {}
    return process.events_of_type(events.Anomaly)


@pytest.mark.parametrize("name", _CASES)
def test_only_trainings_that_continue_are_reported(processes: dict[str, ObservedProcess], name: str) -> None:
    assert {event.code for event in _anomalies(processes, name)} == _CASES[name][1]


def test_a_report_names_the_file_and_the_counter(processes: dict[str, ObservedProcess]) -> None:
    def report(name: str) -> events.Anomaly:
        return _anomalies(processes, name)[0]

    half, whole = report("weights and step"), report("in a trainer")
    assert half.names == ["AdamW", "half.pt", "step"]
    assert (half.numbers["counter"], half.numbers["saved"], half.step) == (120, 0, 1)
    assert half.line.endswith(f"weights_and_step.py:{_START.count(chr(10)) + 2}")
    assert whole.names == ["AdamW", "whole.pt", "step"] and whole.numbers["saved"] == 1
    assert report("weights and epoch").names[2] == "epoch"
    assert report("the scheduler only, counted anew").numbers["counter"] == 120
    assert _anomalies(processes, "weights and step")[1].names == ["LambdaLR", "half.pt", "step"]
