"""How long a race takes is told before it begins and while it goes on; a long one is asked about."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from rankdeck.cli import race
from rankdeck.cli.plan_target import resolve_target
from rankdeck.cli.race import nothing_fits_error
from rankdeck.cli.race_display import estimate_remaining_s
from rankdeck.cli.race_tables import print_race, race_introduction
from rankdeck.run.race import RUNNING, WAITING, ExcludedStrategy, estimate_duration_s, remaining_text
from rankdeck.run_dir import RaceDir
from tests.helpers.launching import small_config
from tests.helpers.racing import plan_line, race_request
from tests.helpers.verified import with_race_verification
from tests.helpers.written_race import judged_race, make_entry


def test_the_expected_time_is_a_lower_bound_if_steps_are_unknown() -> None:
    # Steps of 0.1 to 0.4 s, 0.2 s in the middle; the first runs twice.
    assert estimate_duration_s([plan_line("single"), plan_line("ddp")], 25) == (
        pytest.approx(3 * 12 + 3 * 25 * 0.2),
        False,
    )
    unknown = [plan_line("single"), plan_line("ddp")]
    for entry in unknown:
        entry.step = None
    assert estimate_duration_s(unknown, 25) == (3 * 5, True)


def test_the_remaining_time_follows_from_finished_entries() -> None:
    running_race = judged_race(
        make_entry(1, "single", None, state=RUNNING), make_entry(2, "ddp", None, state=WAITING)
    )
    assert estimate_remaining_s(running_race, 0.0) is None
    later = judged_race(
        make_entry(1, "single"),
        make_entry(2, "ddp", None, state=RUNNING),
        make_entry(3, "dp", None, state=WAITING),
    )
    assert estimate_remaining_s(later, 10.0) == 30.0, "the second, the third, and the first once more"
    last = judged_race(
        make_entry(1, "single"), make_entry(2, "ddp"), make_entry(3, "single", None, state=RUNNING, repeats=1)
    )
    assert estimate_remaining_s(last, 10.0) == 5.0


def test_expected_and_remaining_time_are_shown() -> None:
    running_race = judged_race(
        make_entry(1, "single", None, state=RUNNING), make_entry(2, "ddp", None, state=WAITING)
    )
    assert race_introduction(running_race).endswith("the first 5 not timed; about 0:51")
    assert remaining_text(running_race) == "about 0:51"
    later = judged_race(make_entry(1, "single"), make_entry(2, "ddp", None, state=RUNNING))
    assert remaining_text(later) == "about 2.0 s", "a second for the second, and for the first once more"


def test_a_changed_machine_speed_makes_a_race_inconclusive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = make_entry(3, "single", 0.715, repeats=1)
    race = judged_race(make_entry(1, "single", 0.316), make_entry(2, "dp", 0.196), again, outcome="completed")
    print_race(RaceDir(tmp_path), race)
    out = capsys.readouterr().out
    assert "Inconclusive: step times changed by 126 % during the race. Race again" in out
    assert "simplest" not in out


@pytest.mark.parametrize(
    ("steps", "in_terminal", "answer", "is_asked"),
    [
        (25, True, True, False),
        (1000, True, True, True),
        (1000, True, False, True),
        (1000, False, False, False),
    ],
)
def test_only_a_long_race_in_a_terminal_needs_confirmation(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    in_terminal: bool,
    answer: bool,
    is_asked: bool,
) -> None:
    questions: list[str] = []
    monkeypatch.setattr(typer, "confirm", lambda question, **_: questions.append(question) or answer)
    for name in ("stdin", "stderr"):
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda: in_terminal))
    what = race_request(tmp_path, ["single", "ddp"], steps=steps)
    assert race._confirm_race(what) is (answer or not is_asked)
    assert bool(questions) is is_asked
    assert all("2 strategies take about 10:36" in question for question in questions)


def test_the_race_table_shows_which_entries_equal_one_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = judged_race(make_entry(1, "single"), make_entry(2, "ddp"))
    print_race(RaceDir(tmp_path), plain)
    assert "one device" not in capsys.readouterr().out, "of a version before the check"
    verified = [
        with_race_verification("equal", make_entry(2, "ddp")),
        with_race_verification("noted", make_entry(3, "fsdp")),
    ]
    print_race(RaceDir(tmp_path), judged_race(make_entry(1, "single"), *verified))
    out = capsys.readouterr().out
    assert "as expected" in out and "fsdp: Verified: matches one device except for its batch norms" in out
    assert [line.split()[-1] for line in out.splitlines() if "ddp " in line and "ms" in line] == ["equal"]


def test_a_reason_shared_by_all_strategies_is_printed_once(tmp_path: Path) -> None:
    target = resolve_target(small_config(tmp_path, {"devices": {"use": "cpu:2"}}), None, None)
    alike = [
        ExcludedStrategy(label=label, verdict="cannot", reason="The batch is too large.")
        for label in ("a", "b")
    ]
    assert nothing_fits_error(alike, target).message.endswith("2 virtual devices. The batch is too large.")
    other = ExcludedStrategy(label="c", verdict="cannot", reason="No layer can be split.")
    assert nothing_fits_error([*alike, other], target).message.endswith(
        "a, b: The batch is too large. c: No layer can be split."
    )
