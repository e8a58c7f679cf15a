"""Processes that scripts start, become and end as: each that trains is a rank, and none of them notices."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from rankdeck import events
from rankdeck.base.heartbeat import HeartbeatPage, HeartbeatWriter
from rankdeck.observer.heartbeats import HeartbeatSlot
from tests.helpers.observed_process import INJECT, ObservedProcess, run_script
from tests.helpers.script_python import PYTHON, torch_of_scripts, unavailable_parts

SCRIPTS = Path(__file__).parent / "scripts"
OBSERVER_FOLDER = INJECT.parent


def _run_two_ranks(folder: Path, page: HeartbeatPage, *, alone: bool) -> tuple[ObservedProcess, list[Any]]:
    """How they ended, and what they know themselves. torch's gloo ends a rank that has done its work with an
    abort about once in a hundred times, also where nothing of ours is near: then once more."""
    for attempt in range(3):
        case_folder = folder / f"{alone}-{attempt}"
        case_folder.mkdir()
        command: list[str | Path] = [SCRIPTS / "two_ranks.py", case_folder / "meeting"]
        done = run_script(command, None if alone else case_folder / "run", RANKDECK_HEARTBEAT=page.path)
        if "terminate called without an active exception" not in done.stderr:
            break
    assert done.status == 0, done.stderr
    return done, [json.loads((case_folder / f"meeting.{rank}").read_text()) for rank in (0, 1)]


def test_forked_ranks_are_observed_with_their_wrappers(tmp_path: Path) -> None:
    page = HeartbeatPage(2)
    _, alone = _run_two_ranks(tmp_path, page, alone=True)
    done, results = _run_two_ranks(tmp_path, page, alone=False)
    assert results == alone
    assert done.ranks() == [0, 1]
    for rank in (0, 1):
        assert done.steps(rank, "loss_sum") == results[rank]["losses"]
        lines = done.events(rank)
        assert isinstance(lines[0], events.RankStarted)
        assert (lines[0].rank, lines[0].world_size) == (rank, 2)
        observations = [line for line in lines if isinstance(line, events.Observed)]
        assert observations[0].wrapper == "DistributedDataParallel"
        assert observations[0].wrapper_options["bucket_cap_mb"] == 1
        assert observations[0].backend == "gloo"
        last = "fully_shard" if torch_of_scripts() >= (2, 6) else "FullyShardedDataParallel"
        assert (observations[-1].wrapper, observations[-1].parts) == (last, unavailable_parts())
        assert observations[-1].model == "torch.nn.modules.container:Sequential"
        # Gradients are parts of larger ones by then: their norm is not known.
        norms = done.steps(rank, "grad_norm")
        assert all(norms[:5]), norms
        assert not any(norms[5:]), norms
        beat = page.readers[rank].read()
        assert beat is not None
        assert (beat.step, beat.phase) == (len(norms), "step")
    page.close()


def test_a_script_that_execs_itself_continues_its_event_file(tmp_path: Path) -> None:
    done = run_script([SCRIPTS / "again.py"], tmp_path / "run")
    assert done.status == 1
    assert done.stderr.endswith("ValueError: ends badly\n")
    printed = [float(line) for line in done.stdout.splitlines()]
    losses = done.steps(0, "loss_sum")
    # What the first process had not written yet when it ended is lost: half a second of steps at most.
    assert losses[-5:] == printed[-5:]
    first = losses[:-5]
    assert len(printed) // 4 <= len(first) <= len(printed) - 5
    assert all(loss in (None, printed[i]) for i, loss in enumerate(first))
    started = [line for line in done.events(0) if isinstance(line, events.RankStarted)]
    assert len(started) == 2
    assert started[0].pid == started[1].pid


def test_a_lock_keeps_two_processes_from_writing_one_file(tmp_path: Path) -> None:
    from rankdeck.observer.writer import RankFile

    first = RankFile(str(tmp_path), 0, 0, 2)
    second = RankFile(str(tmp_path), 0, 0, 2)
    assert (first.rank, second.rank) == (0, 2), "number 1 is another rank's"
    first.write("steps", {"rank": 0, "first": 1, "ended": [1.0, 2.0], "loss_sum": [float("nan"), 2.0]})
    with (tmp_path / "rank-0.0.jsonl").open("a") as file:
        file.write('{"kind":"steps","v":1,"se')  # It was killed while it wrote.
    first.close()
    third = RankFile(str(tmp_path), 0, 0, 2)
    assert (third.rank, third.last_step) == (0, 2)
    third.write("observed", {"rank": 0, "script": "x.py"})
    third.close()
    second.close()
    steps, observed = events.decode_lines((tmp_path / "rank-0.0.jsonl").read_bytes())
    assert isinstance(steps, events.Steps) and isinstance(observed, events.Observed)
    assert (steps.seq, steps.loss_sum, observed.seq) == (0, [None, 2.0], 1)


def test_heartbeats_are_byte_equal_to_those_of_the_engine() -> None:
    page = HeartbeatPage(3)
    theirs, ours = HeartbeatWriter(page.path, 1), HeartbeatSlot(page.path, 2)
    for step in (1, 2, 3):
        theirs.beat(step, "step")
        ours.beat(step, "a phase with a name that is too long")
    assert (page.readers[1].read() or ("",))[0] == 3
    beat = page.readers[2].read()
    assert beat is not None
    assert (beat.step, beat.phase) == (3, "a phase with a name that")
    # Whoever takes the slot over is not behind.
    HeartbeatSlot(page.path, 2).beat(4, "step")
    assert (page.readers[2].read() or ("",))[0] == 4
    with pytest.raises(ValueError, match="no slot"):
        HeartbeatSlot(page.path, 3)
    theirs.close()
    page.close()


# A Python without torch: what every helper of a script pays, and sees.


def _run_bare(
    code: str, run: Path | None, *options: str, python: str = PYTHON, **more: str
) -> tuple[int, str, str]:
    done = run_script([*options, "-c", code], run, python=python, **more)
    return done.status, done.stdout, done.stderr


@pytest.mark.parametrize(
    "source",
    [
        None,
        "print('mine')",
        "raise RuntimeError('broken')",
        "import no_such_module",
        "import sys; sys.exit(5)",
    ],
)
def test_a_user_sitecustomize_still_runs(tmp_path: Path, source: str | None) -> None:
    folder = tmp_path / "own"
    folder.mkdir()
    if source is not None:
        (folder / "sitecustomize.py").write_text(source + "\n")
    code = "import sys; print([p for p in sys.path if 'observer' in p], 'sitecustomize' in sys.modules)"
    alone = _run_bare(code, None, PYTHONPATH=str(folder))
    observed = _run_bare(code, tmp_path / "run", PYTHONPATH=os.pathsep.join([str(INJECT), str(folder)]))
    if "exit" in (source or ""):  # Python itself dies of that, and shows every frame.
        assert [text[-40:] for text in (observed[1], observed[2])] == [
            text[-40:] for text in (alone[1], alone[2])
        ]
        assert observed[0] == alone[0] == 1
    else:
        assert observed == alone


def test_without_torch_only_three_modules_are_loaded(tmp_path: Path) -> None:
    code = "import sys; print(*sorted(sys.modules))"
    before = set(_run_bare(code, None)[1].split())
    after = set(_run_bare(code, tmp_path / "run")[1].split())
    loaded = ("", ".imports", ".parts", ".early_stacks")
    # faulthandler is built into Python.
    assert after - before == {"faulthandler", *(f"_rankdeck_observer{name}" for name in loaded)}
    assert not (tmp_path / "run/events").exists()


def test_watched_imports_fail_and_reload_as_without_the_observer(tmp_path: Path) -> None:
    """With stand-ins for watched modules: one is there, one fails, one does not exist."""
    package = tmp_path / "wandb"
    package.mkdir()
    (package / "__init__.py").write_text("loads = globals().get('loads', 0) + 1\n")
    (tmp_path / "torch.py").write_text("raise ImportError('no driver')\n")
    code = (
        "import importlib, importlib.util, pickle, pkgutil, sys, traceback\n"
        "spec = importlib.util.find_spec('wandb'); print(spec.name, type(spec.loader).__name__)\n"
        "import wandb; importlib.reload(wandb); print(wandb.loads)\n"
        "print(wandb.__loader__.is_package('wandb'), vars(wandb.__loader__).keys())\n"
        "print(pkgutil.get_data('wandb', '__init__.py')[:5])\n"
        "for name in ('torch', 'mlflow', 'torch'):\n"
        "    try: importlib.import_module(name)\n"
        "    except ImportError as error: print(error.name, traceback.format_exc())\n"
    )
    assert _run_bare(
        code, tmp_path / "run", PYTHONPATH=os.pathsep.join([str(INJECT), str(tmp_path)])
    ) == _run_bare(code, None, PYTHONPATH=str(tmp_path))


def test_a_failing_part_is_disabled_and_the_script_continues(tmp_path: Path) -> None:
    """The room is copied, and one of its parts broken; the page for heartbeats does not exist."""
    room = tmp_path / "room"
    shutil.copytree(OBSERVER_FOLDER, room, ignore=shutil.ignore_patterns("__pycache__"))
    (room / "loaders.py").write_text("def install(module, session): raise KeyError('broken')\n")
    code = (
        "import torch\n"
        "weight = torch.ones(1, requires_grad=True); optimizer = torch.optim.SGD([weight], 0.1)\n"
        "for _ in range(3): weight.sum().backward(); optimizer.step()\n"
        "print(weight.item())"
    )
    done = run_script(
        ["-c", code],
        tmp_path / "run",
        PYTHONPATH=str(room / "inject"),
        RANKDECK_HEARTBEAT="/proc/self/fd/999",
    )
    assert (done.status, done.stderr) == (0, "")
    off = done.last_observed(0).parts
    assert off.pop("heartbeats").startswith("FileNotFoundError")
    assert off == {**unavailable_parts(), "samples": "KeyError: 'broken'"}
    assert len(done.steps(0, "ended")) == 3


@pytest.mark.slow
def test_skipped_steps_are_not_counted_once_steps_are_disabled(tmp_path: Path) -> None:
    room = tmp_path / "room"
    shutil.copytree(OBSERVER_FOLDER, room, ignore=shutil.ignore_patterns("__pycache__"))
    steps = (room / "steps.py").read_text()
    broken = steps.replace(
        "session.num_outermost_steps += 1",
        "session.num_outermost_steps += 1 / (session.num_outermost_steps != 2)",
    )
    assert broken != steps
    (room / "steps.py").write_text(broken)
    code = (
        "import torch\n"
        "weight = torch.ones(1, requires_grad=True); optimizer = torch.optim.SGD([weight], 0.1)\n"
        "scaler = torch.amp.GradScaler('cpu')\n"
        "for _ in range(5):\n"
        "    scaler.scale(weight.sum()).backward(); scaler.step(optimizer); scaler.update()\n"
    )
    done = run_script(["-c", code], tmp_path / "run", PYTHONPATH=str(room / "inject"))
    assert (done.status, done.stderr) == (0, "")
    assert set(done.last_observed(0).parts) == {*unavailable_parts(), "steps"}
    assert (len(done.steps(0, "ended")), done.last_observed(0).skipped) == (2, 0)


def test_the_observer_parses_as_python_3_9() -> None:
    files = sorted(OBSERVER_FOLDER.rglob("*.py"))
    assert len(files) > 10
    for file in files:
        ast.parse(file.read_text("utf-8"), str(file), feature_version=(3, 9))


def test_imports_are_stdlib_and_torch_only_inside_functions() -> None:
    allowed = set(sys.stdlib_module_names) | {"sitecustomize"}
    for file in sorted(OBSERVER_FOLDER.rglob("*.py")):
        tree = ast.parse(file.read_text("utf-8"))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            for name in (name.split(".")[0] for name in names):
                assert name in allowed or (name == "torch" and node not in tree.body), f"{file.name}: {name}"


def _other_pythons() -> list[str]:
    versions = Path.home() / ".pyenv/versions"
    paths = sorted(str(path) for path in versions.glob("3.*/bin/python")) if versions.is_dir() else []
    paths += [
        path for minor in range(9, 15) if (path := shutil.which(f"python3.{minor}")) and "shims" not in path
    ]
    return paths


@pytest.mark.parametrize("python", _other_pythons() or [sys.executable])
def test_other_pythons_load_every_file(tmp_path: Path, python: str) -> None:
    """Without torch there; what parts do in them is untested."""
    names = sorted(file.stem for file in OBSERVER_FOLDER.glob("*.py") if file.stem != "__init__")
    code = f"for name in {names}: __import__('_rankdeck_observer.' + name)\nprint('all')"
    status, out, error = _run_bare(code, tmp_path / "run", python=python)
    if re.search(r"[./]3\.[0-8]\b", python):
        assert (status, out) == (1, ""), "an older Python is not observed"
        assert error.endswith("No module named '_rankdeck_observer'\n"), error
    else:
        assert (status, out, error) == (0, "all\n", "")


def test_an_isolated_python_is_not_observed(tmp_path: Path) -> None:
    code = "import sys; print('_rankdeck_observer' in sys.modules)"
    assert _run_bare(code, tmp_path / "run")[1] == "True\n"
    assert _run_bare(code, tmp_path / "run", RANKDECK_OBSERVE="none")[1] == "False\n"
    for option in ("-I", "-E", "-S"):
        assert _run_bare(code, tmp_path / "run", option)[1] == "False\n"
