"""`--observe=full`: the ledger follows a few steps of a script, and the script never notices."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import pytest
import torch

from rankdeck import events
from rankdeck.observer import full_observation, ledger_loader
from tests.helpers.observed_process import ObservedProcess, observe_script
from tests.helpers.script_python import torch_of_scripts

_SCRIPT = """
import hashlib, json, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

class Mine(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))

def train(steps, on_top_at=None, ddp=False):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.BatchNorm1d(64),
                                torch.nn.Linear(64, 8))
    if ddp:
        store = torch.distributed.HashStore()
        torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
    trained = torch.nn.parallel.DistributedDataParallel(model) if ddp else model
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(768, 32), torch.randn(768, 8))
    step = 0
    while step < steps:
        for x, y in torch.utils.data.DataLoader(data, 128):
            mode = Mine() if step == on_top_at else None
            if mode: mode.__enter__()
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(trained(x), y).backward()
            optimizer.step()
            if mode:
                assert _get_current_dispatch_mode() is mode
                mode.__exit__(None, None, None)
            step += 1
    size = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)
    weights = b"".join(p.detach().numpy().tobytes() for p in model.parameters())
    print(json.dumps({
        "weights": hashlib.sha256(weights).hexdigest(),
        "parameters": size(model.parameters()), "buffers": size(model.buffers()),
        "optimizer": size(t for s in optimizer.state.values() for t in s.values()),
        "inputs": 128 * (32 + 8) * 4,
        "imported": sorted({"msgspec", "pydantic", "rankdeck"} & set(sys.modules)),
    }))
"""


_IS_OLD = torch_of_scripts() < (2, 11)
needs_tracking = pytest.mark.skipif(_IS_OLD, reason="the torch of scripts is too old to be followed")
_PLAIN = "train(12, ddp=True)\ntorch.distributed.destroy_process_group()\n"


def _train(call: str, level: str, **environment: str) -> ObservedProcess:
    with tempfile.TemporaryDirectory() as folder:
        return observe_script(_SCRIPT + call, Path(folder) / "script", level=level, **environment)


@functools.cache
def _observed_ddp_run() -> ObservedProcess:
    """Under DistributedDataParallel, which has buckets also where a rank is alone."""
    return _train(_PLAIN, "full")


def _folder_of(process: ObservedProcess) -> str:
    return process.stderr.partition('File "')[2].partition("/script.py")[0]


def _tracked_events(process: ObservedProcess) -> list[events.Memory]:
    return [event for event in process.events_of_type(events.Memory) if event.source == events.FOLLOWED]


def test_the_memory_source_equals_the_one_of_events() -> None:
    assert full_observation.TRACKED_SOURCE == events.FOLLOWED


@needs_tracking
def test_a_tracked_step_reports_memory_by_kind() -> None:
    expected = json.loads(_observed_ddp_run().stdout)
    event = _tracked_events(_observed_ddp_run())[0]
    assert event.step == full_observation.TRACK_AFTER_STEPS[0] + 2
    (device,) = event.devices
    assert device.peak_by_kind is not None and device.live_by_kind is not None
    for kind in ("parameters", "buffers", "optimizer"):
        assert device.peak_by_kind[kind] == device.live_by_kind[kind] == expected[kind], kind
    assert device.live_by_kind["gradients"] == expected["parameters"]
    assert device.peak_by_kind["inputs"] == expected["inputs"]
    assert device.peak_by_kind["activations"] > 0
    assert device.peak_by_kind["communication"] == expected["parameters"]  # the buckets
    assert sum(device.peak_by_kind.values()) == device.peak_bytes > device.live_bytes
    assert "full" not in _observed_ddp_run().disabled_parts()


def test_a_failure_of_the_ledger_ends_tracking_and_no_operation() -> None:
    failures: list[Exception] = []
    ledger = ledger_loader.load_ledger(failures.append)

    def broken(*_: object) -> None:
        raise ValueError("the ledger is at fault")

    ledger.add = broken
    with ledger.tracking():
        with pytest.raises(RuntimeError, match="must match"):
            torch.empty(2) + torch.empty(3)
        assert [str(failure) for failure in failures] == ["the ledger is at fault"]
        assert (torch.ones(2) + 1).tolist() == [2.0, 2.0]
    assert len(failures) == 1


def test_an_error_of_an_operation_leaves_the_ledger_on() -> None:
    failures: list[Exception] = []
    ledger = ledger_loader.load_ledger(failures.append)
    with ledger.tracking():
        with pytest.raises(RuntimeError, match="must match"):
            torch.ones(2) + torch.ones(3)
        tensor = torch.ones(4)
        assert ledger.devices()[0].live_by_kind["activations"] == 16
    assert failures == [] and tensor.sum() == 4


@pytest.mark.skipif(not _IS_OLD, reason="the torch of scripts can be followed")
def test_an_older_torch_disables_full_observation_with_a_reason() -> None:
    assert _tracked_events(_observed_ddp_run()) == []
    assert _observed_ddp_run().disabled_parts()["full"] == "needs Python 3.11 and torch 2.11, or newer"


@needs_tracking
def test_owner_memory_ends_after_the_first_tracked_step() -> None:
    sources = [event.source for event in _observed_ddp_run().events_of_type(events.Memory)]
    assert sources == sorted(sources, key=lambda source: source == events.FOLLOWED)


def test_full_observation_changes_neither_weights_nor_output() -> None:
    alone = _train(_PLAIN, "none")
    assert (alone.stdout, alone.stderr, alone.status) == (
        _observed_ddp_run().stdout,
        _observed_ddp_run().stderr,
        0,
    )
    assert json.loads(alone.stdout)["imported"] == []


@pytest.mark.slow
@needs_tracking
def test_tracebacks_of_a_tracked_step_show_no_frames_of_the_ledger() -> None:
    call = """
import traceback
class Fails(torch.utils.data.Dataset):
    def __len__(self): return 4
    def __getitem__(self, index): raise ValueError("in the data")
weight = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([weight], 0.1)
for step in range(8):
    (weight * 2).sum().backward()
    optimizer.step()
    loader = torch.utils.data.DataLoader(Fails(), 2)
    for fails in (lambda: weight + torch.ones(3), lambda: next(iter(loader))):
        try: fails()
        except (RuntimeError, ValueError): traceback.print_exc()
"""
    alone, process = _train(call, "none"), _train(call, "full")
    assert process.stderr.replace(_folder_of(process), "") == alone.stderr.replace(_folder_of(alone), "")
    assert "in the data" in alone.stderr and "size of tensor" in alone.stderr
    assert len(_tracked_events(process)) == 1


@pytest.mark.slow
@needs_tracking
def test_a_dispatch_mode_of_the_script_on_top_ends_tracking() -> None:
    """In the second of the two steps that are followed: it is on top when that step ends."""
    process = _train(f"train(12, on_top_at={full_observation.TRACK_AFTER_STEPS[0] + 1})", "full")
    assert process.status == 0, process.stderr
    assert _tracked_events(process) == []
    assert "its own TorchDispatchMode" in process.disabled_parts()["full"]
    assert json.loads(process.stdout)["weights"] == json.loads(_observed_ddp_run().stdout)["weights"]


@pytest.mark.slow
@needs_tracking
def test_no_step_is_tracked_inside_a_dispatch_mode_of_the_script() -> None:
    process = _train("with Mine():\n    train(12)", "full")
    assert process.status == 0, process.stderr
    assert _tracked_events(process) == [] and "full" not in process.disabled_parts()


@pytest.mark.slow
@needs_tracking
def test_the_tracked_peak_equals_a_ledger_that_ran_from_the_start() -> None:
    """There the whole data set is known too."""
    from_the_start = """
from rankdeck.memory.ledger import Ledger
from torch.optim.optimizer import register_optimizer_step_post_hook
ledger, peaks = Ledger(1), []
def stepped(*_):
    peaks.append(ledger.devices()[0].peak_bytes)
    ledger.reset_peaks()
register_optimizer_step_post_hook(stepped)
with ledger.tracking():
    train(12, ddp=True)
torch.distributed.destroy_process_group()
print(peaks)
"""
    alone = _train(from_the_start, "none")
    assert alone.status == 0, alone.stderr
    peaks = json.loads(alone.stdout.splitlines()[-1])
    event = _tracked_events(_observed_ddp_run())[0]
    data_bytes = 768 * (32 + 8) * 4
    assert event.devices[0].peak_bytes == pytest.approx(peaks[event.step - 1] - data_bytes, abs=64)
