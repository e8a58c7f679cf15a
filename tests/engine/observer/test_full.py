"""`--observe=full`: the ledger follows a few steps of a script, and the script never notices."""

from __future__ import annotations

import functools
import json
import tempfile
from pathlib import Path

import pytest

from rankdeck import events
from rankdeck.observer import full
from tests.helpers.observing import Seen, observe

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
    trained = torch.nn.parallel.DistributedDataParallel(model) if ddp else model
    optimizer = torch.optim.AdamW(model.parameters())
    data = torch.utils.data.TensorDataset(torch.randn(96, 32), torch.randn(96, 8))
    step = 0
    while step < steps:
        for x, y in torch.utils.data.DataLoader(data, 16):
            mode = Mine() if step == on_top_at else None
            if mode: mode.__enter__()
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(trained(x), y).backward()
            optimizer.step()
            if mode:
                assert _get_current_dispatch_mode() is mode
                mode.__exit__(None, None, None)
            step += 1
    assert _get_current_dispatch_mode() is None or on_top_at is not None
    size = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)
    print(json.dumps({
        "weights": hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest(),
        "parameters": size(model.parameters()), "buffers": size(model.buffers()),
        "optimizer": size(t for s in optimizer.state.values() for t in s.values()),
        "inputs": 16 * (32 + 8) * 4,
        "imported": sorted({"msgspec", "pydantic", "rankdeck"} & set(sys.modules)),
    }))
"""


def _trained(call: str, level: str, **environment: str) -> Seen:
    with tempfile.TemporaryDirectory() as folder:
        return observe(_SCRIPT + call, Path(folder) / "script", level=level, **environment)


@functools.cache
def _plain() -> Seen:
    return _trained("train(12)", "full")


def _followed(seen: Seen) -> list[events.Memory]:
    return [event for event in seen.of(events.Memory) if event.source == events.FOLLOWED]


def test_the_words_are_those_of_the_events() -> None:
    assert full.FOLLOWED == events.FOLLOWED


def test_a_later_step_is_told_by_kind() -> None:
    said = json.loads(_plain().stdout)
    told = _followed(_plain())[0]
    assert told.step == full.AFTER_STEPS[0] + 2
    (device,) = told.devices
    assert device.peak_by_kind is not None and device.live_by_kind is not None
    for kind in ("parameters", "buffers", "optimizer"):
        assert device.peak_by_kind[kind] == device.live_by_kind[kind] == said[kind], kind
    assert device.live_by_kind["gradients"] == said["parameters"]
    assert device.peak_by_kind["inputs"] == said["inputs"]
    assert device.peak_by_kind["activations"] > 0
    assert sum(device.peak_by_kind.values()) == device.peak_bytes > device.live_bytes
    assert "full" not in _plain().off()


def test_owners_tell_no_more_once_a_step_was_followed() -> None:
    sources = [event.source for event in _plain().of(events.Memory)]
    assert sources == sorted(sources, key=lambda source: source == events.FOLLOWED)


def test_weights_and_output_are_equal_to_the_bit_and_nothing_of_ours_is_imported() -> None:
    alone = _trained("train(12)", "none")
    assert (alone.stdout, alone.stderr, alone.status) == (_plain().stdout, _plain().stderr, 0)
    assert json.loads(alone.stdout)["imported"] == []


def test_a_mode_that_the_script_puts_on_top_stays_and_ours_gives_up() -> None:
    """In the second of the two steps that are followed: it is on top when that step ends."""
    seen = _trained(f"train(12, on_top_at={full.AFTER_STEPS[0] + 1})", "full")
    assert seen.status == 0, seen.stderr
    assert _followed(seen) == []
    assert "on top" in seen.off()["full"]
    assert json.loads(seen.stdout)["weights"] == json.loads(_plain().stdout)["weights"]


def test_a_mode_of_the_script_that_is_on_is_not_joined() -> None:
    seen = _trained("with Mine():\n    train(12)", "full")
    assert seen.status == 0, seen.stderr
    assert _followed(seen) == [] and "full" not in seen.off()


def test_the_buckets_of_ddp_are_communication() -> None:
    call = (
        "torch.distributed.init_process_group("
        "'gloo', rank=0, world_size=1, store=torch.distributed.HashStore())\n"
        "train(12, ddp=True)\ntorch.distributed.destroy_process_group()"
    )
    seen = _trained(call, "full")
    assert seen.status == 0, seen.stderr
    (device,) = _followed(seen)[0].devices
    assert device.peak_by_kind is not None
    assert device.peak_by_kind["communication"] == json.loads(seen.stdout)["parameters"]


@pytest.mark.slow
def test_the_peak_is_what_our_own_ledger_measures_from_the_start() -> None:
    ours = _trained(
        "import rankdeck.memory.ledger as L\n"
        "ledger = L.Ledger(1)\n"
        "kept = []\n"
        "from torch.optim.optimizer import register_optimizer_step_post_hook\n"
        "def after(*_):\n"
        "    kept.append(ledger.devices()[0].peak_bytes)\n"
        "    ledger.reset_peaks()\n"
        "register_optimizer_step_post_hook(after)\n"
        "with ledger.following():\n"
        "    train(12)\n"
        "print(kept[4])\n",
        "none",
    )
    assert ours.status == 0, ours.stderr
