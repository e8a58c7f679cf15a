"""How long a race takes is told before it begins and while it goes on; a long one is asked about."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer

from rankdeck.cli import race
from rankdeck.cli.plan_target import target_of
from rankdeck.cli.race import nothing_fits
from rankdeck.cli.race_display import left_s
from rankdeck.cli.race_tables import introduction, print_race
from rankdeck.run.race import RUNNING, WAITING, LeftOut, expected_s, remaining_text
from rankdeck.rundir import RaceDir
from tests.helpers.launching import small_config
from tests.helpers.racing import asked, line
from tests.helpers.told_race import entry, judged
from tests.helpers.verified import raced_as


def test_what_is_predicted_and_what_a_start_takes_add_up_and_unknown_steps_make_it_the_least() -> None:
    # Steps of 0.1 to 0.4 s, 0.2 s in the middle; the first runs twice.
    assert expected_s([line("single"), line("ddp")], 25) == (pytest.approx(3 * 12 + 3 * 25 * 0.2), False)
    unknown = [line("single"), line("ddp")]
    for one in unknown:
        one.step = None
    assert expected_s(unknown, 25) == (3 * 5, True)


def test_what_is_left_is_as_many_entries_as_are_not_over_at_the_pace_so_far() -> None:
    begun = judged(entry(1, "single", None, state=RUNNING), entry(2, "ddp", None, state=WAITING))
    assert left_s(begun, 0.0) is None
    later = judged(
        entry(1, "single"), entry(2, "ddp", None, state=RUNNING), entry(3, "dp", None, state=WAITING)
    )
    assert left_s(later, 10.0) == 30.0, "the second, the third, and the first once more"
    last = judged(entry(1, "single"), entry(2, "ddp"), entry(3, "single", None, state=RUNNING, repeats=1))
    assert left_s(last, 10.0) == 5.0


def test_every_race_says_how_long_it_takes_before_it_starts_and_while_it_goes_on() -> None:
    begun = judged(entry(1, "single", None, state=RUNNING), entry(2, "ddp", None, state=WAITING))
    assert introduction(begun).endswith("the first 5 not timed; about 0:51")
    assert remaining_text(begun) == "about 0:51"
    later = judged(entry(1, "single"), entry(2, "ddp", None, state=RUNNING))
    assert remaining_text(later) == "about 2.0 s", "a second for the second, and for the first once more"


def test_a_race_on_a_machine_that_changed_its_speed_is_inconclusive_in_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = entry(3, "single", 0.715, repeats=1)
    race = judged(entry(1, "single", 0.316), entry(2, "dp", 0.196), again, outcome="completed")
    print_race(RaceDir(tmp_path), race)
    out = capsys.readouterr().out
    assert "Inconclusive: machine speed changed by 126 % during the race. Race again" in out
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
def test_only_a_long_race_in_a_terminal_is_asked_about(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    steps: int,
    in_terminal: bool,
    answer: bool,
    is_asked: bool,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(typer, "confirm", lambda words, **_: said.append(words) or answer)
    for name in ("stdin", "stderr"):
        monkeypatch.setattr(sys, name, SimpleNamespace(isatty=lambda: in_terminal))
    what = asked(tmp_path, ["single", "ddp"], steps=steps)
    assert race._is_wanted(what) is (answer or not is_asked)
    assert bool(said) is is_asked
    assert all("2 strategies take about 10:36" in words for words in said)


def test_a_race_says_which_entries_equal_one_device(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = judged(entry(1, "single"), entry(2, "ddp"))
    print_race(RaceDir(tmp_path), plain)
    assert "one device" not in capsys.readouterr().out, "of a version before the check"
    verified = [raced_as("equal", entry(2, "ddp")), raced_as("noted", entry(3, "fsdp"))]
    print_race(RaceDir(tmp_path), judged(entry(1, "single"), *verified))
    out = capsys.readouterr().out
    assert "as expected" in out and "fsdp: Verified: equals one device but for its batch norms" in out
    assert [line.split()[-1] for line in out.splitlines() if "ddp " in line and "ms" in line] == ["equal"]


def test_what_keeps_all_strategies_from_racing_is_said_once(tmp_path: Path) -> None:
    target = target_of(small_config(tmp_path, {"devices": {"use": "cpu:2"}}), None, None)
    alike = [LeftOut(label=label, verdict="cannot", reason="The batch is too large.") for label in ("a", "b")]
    assert nothing_fits(alike, target).message.endswith("2 virtual devices. The batch is too large.")
    other = LeftOut(label="c", verdict="cannot", reason="No layer can be split.")
    assert nothing_fits([*alike, other], target).message.endswith(
        "a, b: The batch is too large. c: No layer can be split."
    )
