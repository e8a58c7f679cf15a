"""The list of breaks cannot rot, and the runner tells a break that tests see from one that they do not.

The run itself takes hours: make mutants.
"""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import pytest

from rankdeck.config.catalog import STRATEGIES
from tests.helpers.checkout import CHECKOUT
from tests.mutants import run, table
from tests.mutants.breaks import ENGINE, Break, fixed

NAMED = (
    "imbalance against the mean instead of the median",
    "the same dropout on all ranks",
    "the learning rate is one step late",
    "gradients are clipped before they are scaled by the count",
)


def test_every_break_still_stands_once_in_its_file_and_leaves_python() -> None:
    """Who changes a line mends its text in tests/mutants."""
    for planted in fixed():
        ast.parse(planted.applied_to((CHECKOUT / ENGINE / planted.file).read_text("utf-8")))
        assert [test for test in planted.tests if not (CHECKOUT / "tests" / test).is_file()] == [], (
            planted.name
        )


def test_every_strategy_and_every_room_has_three_breaks() -> None:
    rooms = {path.stem for path in (CHECKOUT / ENGINE).iterdir() if path.name[0] not in "_."} - {
        "py",
        "rundir",
    }
    counts = Counter(planted.of for planted in fixed())
    assert {
        name: counts[name] for name in (rooms - {"strategies"}) | set(STRATEGIES) if counts[name] < 3
    } == {}
    assert set(NAMED) <= {planted.name for planted in fixed()}


def test_a_planted_break_is_caught_and_a_harmless_one_survives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = tmp_path / "original"
    (original / ENGINE).mkdir(parents=True)
    (original / "tests").mkdir()
    source = original / ENGINE / "sums.py"
    source.write_text("def total(values):\n    result = 0\n    return result + sum(values)\n")
    (original / "tests/test_sums.py").write_text(
        f"import sys; sys.path.insert(0, {ENGINE!r})\n"
        "import sums\ndef test_total(): assert sums.total([1, 2]) == 3\n"
    )
    caught = Break("run", "one more", "sums.py", "result = 0", "result = 1", ("test_sums.py",))
    unseen = Break(
        "run",
        "in another order",
        "sums.py",
        "result + sum(values)",
        "sum(values) + result",
        ("test_sums.py",),
    )
    monkeypatch.setattr(table, "PAGE", tmp_path / "page.md")
    known_results = run.Known(tmp_path / "kept")
    tree = run.Tree(tmp_path / "copy", original)
    run.try_break(tree, known_results, unseen)
    run.try_break(tree, known_results, caught)
    assert known_results.result(unseen, original) == run.Result(
        unseen.key, None, run.digest(unseen.tests, original)
    )
    assert getattr(known_results.result(caught, original), "by", None) == "tests/test_sums.py::test_total"
    assert (tree.root / ENGINE / "sums.py").read_text() == source.read_text()
    # What a run that was stopped had found is known to the next one, until a test changes.
    again = run.Known(tmp_path / "kept")
    table.write([caught, unseen], tmp_path / "nothing", lambda planted: again.result(planted, original))
    assert "2 fixed: 1 caught, 0 harmless, 1 survived" in table.PAGE.read_text()
    with (original / "tests/test_sums.py").open("a") as file:
        file.write("# another test\n")
    assert again.result(caught, original) is not None and again.result(unseen, original) is None
