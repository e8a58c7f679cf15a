"""Where nobody follows bytes, strategies make the same calls and nothing is kept."""

from __future__ import annotations

import torch

from rankdeck.memory.ledger import Ledger, NullLedger


def test_every_call_of_a_strategy_is_answered_and_nothing_is_known() -> None:
    ledger, tensor = NullLedger(), torch.ones(3)
    with ledger.following(), ledger.phase("inputs"), ledger.on(1), ledger.crossing(1), ledger.paused():
        made = torch.ones(4)
        ledger.adopt([tensor, made], 0, "inputs")
        ledger.relabel([tensor], "communication")
        ledger.end_phase("inputs")
    ledger.reset_peaks()
    ledger.watch(torch.nn.Linear(1, 1))
    assert not ledger.is_following and not ledger.can_follow
    assert ledger.device_of(made) is None and ledger.devices() == []


def test_its_calls_are_those_of_a_ledger() -> None:
    public = {name for name in dir(NullLedger) if not name.startswith("_")}
    assert public <= set(dir(Ledger))
