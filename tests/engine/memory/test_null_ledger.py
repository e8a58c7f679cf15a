"""Where nobody follows bytes, strategies make the same calls and nothing is kept."""

from __future__ import annotations

import torch

from rankdeck.memory.ledger import Ledger, NullLedger


def test_a_null_ledger_accepts_every_call() -> None:
    ledger, tensor = NullLedger(), torch.ones(3)
    with (
        ledger.tracking(),
        ledger.phase("inputs"),
        ledger.on_device(1),
        ledger.transfer_to(1),
        ledger.paused(),
    ):
        new_tensor = torch.ones(4)
        ledger.adopt([tensor, new_tensor], 0, "inputs")
        ledger.relabel([tensor], "communication")
        ledger.end_phase("inputs")
    ledger.reset_peaks()
    ledger.watch(torch.nn.Linear(1, 1))
    assert not ledger.is_tracking and not ledger.can_track
    assert ledger.device_of(new_tensor) is None and ledger.devices() == []


def test_a_null_ledger_has_the_methods_of_a_ledger() -> None:
    public = {name for name in dir(NullLedger) if not name.startswith("_")}
    assert public <= set(dir(Ledger))
