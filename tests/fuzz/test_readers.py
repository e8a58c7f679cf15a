"""Whatever is in a run's folder, who reads it says so in words: soon, in bounds, and touching nothing else.

A share of what `make fuzz` does. What that has found once stays here, as the damage that it was.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from tests.fuzz.damage import Damage, Document, Instead, Line
from tests.fuzz.example import BOUNDED, Case, Place, cases
from tests.fuzz.readers import COMMANDS
from tests.fuzz.values import DEEP

NUM_EXAMPLES = 30
SOME = tuple(index for index, arguments in enumerate(COMMANDS) if arguments[0] in ("show", "runs", "report"))
RANK, SUPERVISOR, SAMPLER = (b"events/%s.0.jsonl" % name for name in (b"rank-0", b"supervisor", b"sampler"))
SINGLE, SCRIPT, RACE = 0, 4, 5


def _started(**fields: Any) -> dict[str, Any]:
    defaults = {"run": "r", "attempt": 0, "world_size": 1, "started": 0.0, "seq": 0, "devices": []}
    return {"kind": "run_started", **defaults, **fields}


def _spans(**fields: Any) -> dict[str, Any]:
    columns = {"names": ["data"], "name": [0], "device": [0], "start_us": [0], "duration_us": [1]}
    return {"kind": "spans", "rank": 0, "step": 3, "began": 0.0, "seconds": 1.0, **columns, **fields}


DEVICE = {"index": 0, "name": "0", "kind": "virtual"}
SEEN = {"kind": "observed", "seq": 0, "rank": 0, "script": "x"}
PLAN = {"kind": "plan", "strategy": "ddp", "label": "x", "verdict": "fits", "options": {}}
DEVICE_PLANNED = {"device": 0, "active_bytes": 10**400, "total_bytes": 1}
FOUND: dict[str, tuple[int, Damage]] = {
    "sizes that no double holds": (
        SINGLE,
        Document(
            "plan.json", {**PLAN, "devices": [{"device": 0, "active_bytes": 10**400, "total_bytes": 1}]}
        ),
    ),
    "a sum that no double holds": (
        SINGLE,
        Line(RANK, {"kind": "comm", "rank": 0, "step": 1, "algorithm": "x", "sent_bytes": 10**4299}),
    ),
    "a kind that is no text": (SINGLE, Line(RANK, {"kind": {}, "seq": 0})),
    "columns of phases of several lengths": (SINGLE, Line(RANK, _spans(start_us=[0, 1]))),
    "a step without a phase": (
        SINGLE,
        Line(RANK, _spans(names=[], name=[], device=[], start_us=[], duration_us=[])),
    ),
    "a phase without a name": (SINGLE, Line(RANK, _spans(name=[7]))),
    "a phase that begins beyond all numbers": (SINGLE, Line(RANK, _spans(start_us=[10**400]))),
    "options nested very deep": (SCRIPT, Line(RANK, {**SEEN, "wrapper_options": {"a": DEEP}})),
    "groups nested very deep": (SCRIPT, Line(RANK, {**SEEN, "parameter_groups": [{"a": DEEP}]})),
    "a capacity of some devices": (
        SINGLE,
        Line(SUPERVISOR, _started(devices=[{**DEVICE, "index": 1, "total_bytes": 9}, DEVICE])),
    ),
    "a file of events without a line": (SINGLE, Instead(RANK, "huge")),
    "a supervisor without a line": (SINGLE, Instead(SUPERVISOR, "huge")),
    "a folder of checkpoints that nobody may read": (SINGLE, Instead(b"checkpoints", "closed")),
    "a folder of events that nobody may read": (SINGLE, Instead(b"events", "closed")),
    "entries that are no folder": (RACE, Instead(b"entries", "loop")),
    "surroundings that take gigabytes": (SINGLE, Instead(b"environment.json", "long")),
    "labels that take gigabytes": (SINGLE, Instead(b"labels.json", "long")),
    "a script that takes a minute": (SCRIPT, Instead(b"config.7.toml", "long")),
    "a pipe as a later configuration": (SINGLE, Instead(b"config.7.toml", "pipe")),
    "a device as weights": (SINGLE, Instead(b"weights.safetensors", "device")),
    "a reading beyond all numbers": (
        SINGLE,
        Line(
            SAMPLER,
            {"kind": "sample", "interval_s": 1e308, "devices": [{"device": -1, "utilisation": 1e308}]},
        ),
    ),
}


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("fuzz"))


@settings(BOUNDED, max_examples=NUM_EXAMPLES, derandomize=True)
@given(cases())
def test_no_reader_breaks(sandbox: Place, case: Case) -> None:
    sandbox.check(case)


@pytest.mark.parametrize("what", FOUND)
def test_no_reader_breaks_again(sandbox: Place, what: str) -> None:
    seed, damage = FOUND[what]
    sandbox.check(Case(seed, (damage,), commands=SOME))
