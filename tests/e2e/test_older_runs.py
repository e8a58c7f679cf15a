"""Runs of earlier versions are shown, opened and resumed as the version that made them did.

The runs and what was said of them are in tests/fixtures; make_runs.py there makes those of a new version.
"""

from __future__ import annotations

import json
import shutil
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PySide6.QtCore import QCoreApplication

from rankdeck_app.state.live_run import LiveRun
from tests.helpers.cli import rankdeck_in_process
from tests.helpers.waiting import wait_until

ARCHIVES = sorted((Path(__file__).parents[1] / "fixtures").glob("runs-*.tar.xz"))


def _run_names(archive: Path) -> list[str]:
    with tarfile.open(archive) as packed:
        return sorted(name.split("/")[1] for name in packed.getnames() if name.endswith("/show.json"))


RUNS = [(archive, name) for archive in ARCHIVES for name in _run_names(archive)]


def _is_always_resumed(archive: Path, name: str) -> bool:
    """Whether a run is resumed by every test run: the one whose checkpoint has the most in it."""
    return archive == ARCHIVES[0] and "-pipeline-async-" in name


_NEVER_RESUMED = ("failed", "restarted", "diverged", "too-small", "script", "two-hosts")
RESUMED = [
    pytest.param(*run, marks=() if _is_always_resumed(*run) else pytest.mark.slow, id=run[1][16:-5])
    for run in RUNS
    if not any(f"-{word}-" in run[1] for word in _NEVER_RESUMED)
]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Path]:
    folders = {archive: tmp_path_factory.mktemp(archive.name.split(".tar")[0]) for archive in ARCHIVES}
    for archive, folder in folders.items():
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
    return folders


@pytest.fixture
def run(unpacked: dict[Path, Path], archive: Path, name: str) -> Path:
    return unpacked[archive] / "runs" / name


def _recorded_summary(run: Path) -> dict[str, Any]:
    text = (run / "show.json").read_text().replace("/tmp/rankdeck-fixtures/runs", str(run.parent))
    summary: dict[str, Any] = json.loads(text)
    return {key: value for key, value in summary.items() if key not in ("path", "weights")}


NEWER_FINDINGS = {"loss-not-finite"}
"""Findings that a version before did not have, in the run of a script whose loss becomes infinite."""
SENTENCES = ("message", "advice", "text", "templates")
"""Keys that a later version may word differently, but only where it derives them from a run's events."""


def _contains(then: Any, now: Any, *, is_derived: bool = False) -> bool:
    """Check whether `now` has everything of `then`; it may have more keys.

    What the run recorded stays word for word. Findings, the result of the check before the first
    step and the problem of a lost run are derived.
    """
    if isinstance(then, dict):
        is_derived = is_derived or then.get("code") == "lost"
        return isinstance(now, dict) and all(
            key in now
            and (
                bool(now[key]) == bool(then[key])
                if is_derived and key in SENTENCES
                else _contains(then[key], now[key], is_derived=is_derived)
            )
            for key in then
        )
    if isinstance(then, list):
        return (
            isinstance(now, list)
            and len(then) == len(now)
            and all(_contains(*pair, is_derived=is_derived) for pair in zip(then, now, strict=True))
        )
    if isinstance(then, float):
        return now == pytest.approx(then, rel=1e-9)
    return bool(then == now)


def test_archives_have_every_strategy_and_outcome() -> None:
    names = " ".join(name for _, name in RUNS)
    for word in ("single", "dp", "ddp", "fsdp", "model", "pipeline", "tensor", "hybrid"):
        assert f"-{word}-" in names
    for word in ("killed", "stopped", "resumed-twice", "failed"):
        assert f"-{word}-" in names


@pytest.mark.parametrize(("archive", "name"), RUNS, ids=[name[16:-5] for _, name in RUNS])
def test_show_of_an_older_run_is_unchanged(run: Path) -> None:
    then = _recorded_summary(run)
    now = rankdeck_in_process("show", run, "--json", exit_code=0).json
    newer = NEWER_FINDINGS if "-script-infinite-" in run.name else set[str]()
    assert newer <= {finding["code"] for finding in now["findings"]}
    now["findings"] = [finding for finding in now["findings"] if finding["code"] not in newer]
    differing = {
        key: (then[key], now.get(key))
        for key in then
        if not _contains(then[key], now.get(key), is_derived=key in ("findings", "verified"))
    }
    assert differing == {}
    assert not _contains({**then, "steps": then["steps"] + 1}, now)


def test_only_derived_sentences_may_be_worded_differently() -> None:
    recorded = [{"code": "hang", "message": "a", "rank": 0}]
    assert not _contains(recorded, [{"code": "hang", "message": "b", "rank": 0}])
    assert _contains(recorded, [{"code": "hang", "message": "b", "rank": 0}], is_derived=True)
    assert not _contains(recorded, [{"code": "hang", "message": "", "rank": 0}], is_derived=True)
    assert not _contains(recorded, [{"code": "hang", "message": "b", "rank": 1}], is_derived=True)


@pytest.fixture
def live(qapp: QCoreApplication, run: Path) -> Iterator[LiveRun]:
    opened = LiveRun(run)
    opened.start()
    yield opened
    opened.close()


@pytest.mark.parametrize(("archive", "name"), RUNS, ids=[name[16:-5] for _, name in RUNS])
def test_an_older_run_opens_in_the_app(run: Path, live: LiveRun) -> None:
    then = _recorded_summary(run)

    def is_read() -> bool:
        live.drain()
        return live.outcome == then["outcome"]

    wait_until(is_read)
    assert (live.strategy, live.step or 0) == (then["strategy"], then["steps"])
    if (loss := then["loss"]["last"]) is not None:
        assert live.state.losses.last_y == pytest.approx(loss)
    evaluated = None if live.state.evaluation is None else live.state.evaluation.step
    assert evaluated == (then["evaluation"] and then["evaluation"]["step"])


@pytest.mark.parametrize(("archive", "name"), RESUMED)
def test_an_older_run_can_be_resumed(run: Path, tmp_path: Path) -> None:
    then = _recorded_summary(run)
    copy = shutil.copytree(run, tmp_path / "runs" / run.name)
    saved = max(int(path.parent.name) for path in copy.glob("checkpoints/*/COMMIT"))
    rankdeck_in_process("resume", copy, "--set", f"train.steps={saved + 4}", exit_code=0)
    now = rankdeck_in_process("show", copy, "--json", exit_code=0).json
    assert (now["outcome"], now["steps"], now["attempts"]) == ("completed", saved + 4, then["attempts"] + 1)
    assert now["loss"]["first"] == then["loss"]["first"]
    assert now["loss"]["last"] < then["loss"]["first"]
