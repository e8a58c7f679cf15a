"""What follows from the entries of a race: agreement, places, drift, the winner."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec
import pytest

from rankdeck.run.race import COMPLETED, STOPPED, RaceEntry, read_race, write_race
from rankdeck.run.race_row import race_info
from rankdeck.run.race_verdicts import judge, median_interval_s
from rankdeck.run.row import row_json
from rankdeck.run_dir import create_race
from tests.helpers.written_race import LOSSES, STEPS, judged_race, make_entry, shifted_losses

NORM_REASONS = {"batch-norm-differs": "Batch norms normalise over 8 samples at a time."}


@pytest.mark.parametrize(
    ("name", "other", "precision", "verdict", "step", "reason"),
    [
        ("the same", make_entry(2, "ddp"), "fp32", "agrees", 1, ""),
        ("rounding", make_entry(2, "ddp", losses=shifted_losses(1.9e-6)), "fp32", "agrees", None, ""),
        ("too far at first", make_entry(2, "ddp", losses=shifted_losses(3e-6)), "fp32", "differs", None,
         "In step 1, this entry's loss differs"),
        ("rounding that grew", make_entry(2, "fsdp", losses=shifted_losses(9e-5, 11)), "fp32", "agrees",
         None, ""),
        ("too far later", make_entry(2, "fsdp", losses=shifted_losses(2e-4, 11)), "fp32", "differs", None,
         "In step 11, this entry's loss differs"),
        ("fp64 is held to its own", make_entry(2, "ddp", losses=shifted_losses(1e-9)), "fp64", "differs",
         None, "1e-10"),
        ("bf16 rounds", make_entry(2, "ddp", losses=shifted_losses(1e-3)), "bf16", "expected", None,
         "3 significant digits"),
        ("norms", make_entry(2, "ddp", losses=shifted_losses(1e-2), reasons=NORM_REASONS), "fp32", "expected",
         None, "8 samples"),
        ("norms that agree", make_entry(2, "ddp", reasons=NORM_REASONS), "fp32", "agrees", None, ""),
        ("stale", make_entry(2, "pipeline-async", losses=shifted_losses(0.1)), "fp32", "expected", None,
         "updates old"),
        ("compressed", make_entry(2, "ddp", losses=shifted_losses(0.1), compress="fp16"), "fp32", "expected",
         None, "fp16"),
        ("nothing in common", make_entry(2, "ddp", losses=[None] * STEPS), "fp32", "differs", None,
         "No step has a recorded loss"),
        ("failed", make_entry(2, "ddp", None), "fp32", None, None, ""),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else "",
)  # fmt: skip
def test_losses_are_compared_with_the_reference(
    name: str, other: RaceEntry, precision: str, verdict: str | None, step: int | None, reason: str
) -> None:
    agreement = judged_race(make_entry(1, "single"), other, precision=precision).entries[1].agreement
    assert (None if agreement is None else agreement.verdict) == verdict, name
    assert reason in ((agreement.reason if agreement else None) or "")
    if step is not None:
        assert agreement is not None and (agreement.step, agreement.difference) == (step, 0.0)


def test_single_or_else_the_first_entry_is_the_reference() -> None:
    last = judged_race(make_entry(1, "ddp", losses=shifted_losses(1e-2)), make_entry(2, "single"))
    assert last.verdicts.reference == 2 and last.exit_code == 1
    first = judged_race(make_entry(1, "dp", None), make_entry(2, "ddp"), make_entry(3, "fsdp"))
    assert first.verdicts.reference == 2
    # What the reference itself does otherwise explains the others, too.
    dropped = judged_race(
        make_entry(1, "ddp", reasons={"dropout-differs": "Dropout."}),
        make_entry(2, "fsdp", losses=shifted_losses(0.1)),
    )
    assert [entry.agreement.verdict for entry in dropped.entries if entry.agreement] == [
        "reference",
        "expected",
    ]
    assert dropped.exit_code == 0


@pytest.mark.parametrize(
    ("times", "again", "jitter", "positions", "note"),
    [
        ((0.1, 0.2, 0.3), 0.1, 0.001, [1, 2, 3], "by +0 %"),
        ((0.3, 0.2, 0.1), 0.3, 0.001, [3, 2, 1], "by +0 %"),
        ((0.1, 0.105, 0.3), 0.114, 0.001, [1, 1, 3], "positions 1 and 2 are indistinguishable"),
        ((0.1, 0.2, 0.21), 0.086, 0.001, [1, 2, 2], "positions 2 and 3 are indistinguishable"),
        ((0.1, 0.102, 0.3), 0.1, 0.1, [1, 1, 3], "by +0 %"),
    ],
)  # fmt: skip
def test_entries_that_are_not_distinguishable_share_a_place(
    times: tuple[float, ...], again: float, jitter: float, positions: list[int], note: str
) -> None:
    names = ("single", "ddp", "fsdp")
    entries = [
        make_entry(at + 1, name, time, jitter=jitter)
        for at, (name, time) in enumerate(zip(names, times, strict=True))
    ]
    race = judged_race(*entries, make_entry(4, "single", again, jitter=jitter, repeats=1))
    assert [entry.place for entry in race.entries] == [*positions, None]
    assert note in race.verdicts.notes[0]


@pytest.mark.parametrize(
    ("entries", "kind", "fastest", "winner", "why"),
    [
        (
            [make_entry(1, "single", 0.3), make_entry(2, "ddp", 0.1)], "gpu", 2, 2,
            "No other entry was as fast.",
        ),
        ([make_entry(1, "single", 0.3), make_entry(2, "ddp", 0.1)], "virtual", 2, None,
         "No other entry was as fast."),
        ([make_entry(1, "fsdp", 0.1), make_entry(2, "ddp", 0.1)], "gpu", 2, 2, "simplest of 2"),
        (
            [make_entry(1, "ddp", 0.2), make_entry(2, "pipeline-async", 0.1, shifted_losses(0.1))],
            "gpu", 1, 1, "as fast is pipeline-async, which trains differently",
        ),
        ([make_entry(1, "single", 0.3), make_entry(2, "ddp", 0.1, shifted_losses(0.1))], "gpu", 1, 1,
         "as fast is ddp, which trains differently"),
        ([make_entry(1, "single", 0.3), make_entry(2, "ddp", 0.1, shifted_losses(0.1), reasons=NORM_REASONS)],
         "gpu", 2, 2, "No other"),
        ([make_entry(1, "single", None)], "gpu", None, None, ""),
    ],
)  # fmt: skip
def test_the_winner_is_the_simplest_of_the_fastest_equal_entries(
    entries: list[RaceEntry], kind: str, fastest: int | None, winner: int | None, why: str
) -> None:
    verdicts = judged_race(*entries, kind=kind, outcome=COMPLETED).verdicts
    assert (verdicts.fastest, verdicts.winner) == (fastest, winner)
    assert why in verdicts.fastest_why


@pytest.mark.parametrize(
    ("times", "again", "fastest", "inconclusive"),
    [
        ((0.316, 0.196), 0.715, None, "Inconclusive: step times changed by 126 % during the race."),
        ((0.316, 0.196), 0.16, None, "Inconclusive: step times changed by 49 % during the race."),
        ((0.316, 0.1), 0.35, 2, ""),
        ((0.316, 0.196), 0.32, 2, ""),
        ((0.1, 0.1), 0.2, 1, ""),
    ],
)
def test_a_machine_that_drifted_names_a_winner_only_if_clear(
    tmp_path: Path, times: tuple[float, float], again: float, fastest: int | None, inconclusive: str
) -> None:
    first, second = times
    entries = (
        make_entry(1, "single", first),
        make_entry(2, "dp", second),
        make_entry(3, "single", again, repeats=1),
    )
    race = judged_race(*entries, outcome=COMPLETED)
    verdicts = race.verdicts
    assert (verdicts.fastest, verdicts.winner, verdicts.inconclusive) == (fastest, fastest, inconclusive)
    assert bool(verdicts.fastest_why) == (fastest is not None)
    (note,) = verdicts.notes
    assert ("drifted" in note) == (not inconclusive), "how much it changed is said once"
    assert not inconclusive or note == "The entries in positions 1 and 2 are indistinguishable."
    folder = create_race(tmp_path, "Race · GPT", "")
    write_race(folder, race)
    facts = race_info(folder).race
    assert facts is not None and facts.is_inconclusive == bool(inconclusive)


def test_the_fastest_so_far_has_the_least_time() -> None:
    entries = make_entry(1, "single", 0.101, jitter=0.1), make_entry(2, "ddp", 0.1, jitter=0.1)
    assert judged_race(*entries).verdicts.fastest == 2
    assert judged_race(*entries, outcome=COMPLETED).verdicts.fastest == 1, "the simpler of two that are alike"


def test_a_repetition_that_failed_leaves_the_drift_unknown() -> None:
    race = judged_race(
        make_entry(1, "single"), make_entry(2, "ddp", 0.2), make_entry(3, "single", None, repeats=1)
    )
    assert race.verdicts.drift is None and "drift is unknown" in race.verdicts.notes[0]
    assert [entry.place for entry in race.unique_entries] == [1, 2]


def test_the_interval_of_a_median_is_wide_for_few_steps() -> None:
    times = [float(number) for number in range(1, 21)]
    assert median_interval_s(times) == (6.0, 16.0)
    assert median_interval_s(times[:3]) == (1.0, 3.0) and median_interval_s([2.0]) == (2.0, 2.0)


def test_a_race_round_trips_and_is_lost_without_its_racer(tmp_path: Path) -> None:
    folder = create_race(tmp_path, "Race · GPT", "")
    assert read_race(folder) is None and row_json(race_info(folder))["outcome"] == "lost"
    race = judged_race(make_entry(1, "single"), make_entry(2, "ddp", losses=[math.nan, *LOSSES[1:]]))
    write_race(folder, race)
    (again,) = [candidate for candidate in [read_race(folder)] if candidate is not None]
    assert again.outcome == "lost" and again.entries[0] == race.entries[0]
    assert again.entries[1].measured is not None and again.entries[1].measured.losses[0] is None
    row = row_json(race_info(folder))
    assert (row["run"], row["entries"], row["entries_done"], row["steps"]) == (folder.name, 2, 2, STEPS)
    assert folder.name[15:].startswith("-race-gpt-")
    folder.file.write_bytes(msgspec.json.encode({**msgspec.to_builtins(race), "version": 99}))
    assert read_race(folder) is None


def test_a_race_stopped_after_one_entry_has_no_fastest() -> None:
    race = judged_race(make_entry(1, "single"), make_entry(2, "ddp", None, state=STOPPED), kind="gpu")
    assert race.verdicts.fastest is not None
    race.outcome = STOPPED
    judge(race)
    assert (race.verdicts.fastest, race.verdicts.winner) == (None, None)
    failed = judged_race(make_entry(1, "single"), make_entry(2, "ddp", None), kind="gpu")
    failed.outcome = COMPLETED
    judge(failed)
    assert failed.verdicts.winner == 1
