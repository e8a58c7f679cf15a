"""A person's script in a process of its own, with the observer put on its path as `rankdeck run` does it, and
nothing else around it."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from rankdeck import events
from tests.helpers.checkout import CHECKOUT, PRODUCT
from tests.helpers.script_python import PYTHON
from tests.helpers.waiting import scale_timeout

INJECT = CHECKOUT / "engine/rankdeck/observer/inject"
Kind = TypeVar("Kind", bound=events.Event)


@dataclass
class ObservedProcess:
    """How it ended, and what it left in its run directory: lines by rank (none where it ran alone)."""

    status: int
    stdout: str
    stderr: str
    run: Path | None
    lines: dict[int, list[events.AnyEvent | None]] = field(default_factory=dict)

    def ranks(self) -> list[int]:
        return sorted(self.lines)

    def events(self, rank: int) -> list[events.AnyEvent]:
        """All of a rank's lines; every one is known, and they are numbered without a gap."""
        complete = [line for line in self.lines[rank] if line is not None]
        assert [line.seq for line in complete] == list(range(len(self.lines[rank])))
        return complete

    def events_of_type(self, kind: type[Kind], rank: int = 0) -> list[Kind]:
        return [event for event in self.events(rank) if isinstance(event, kind)]

    def steps(self, rank: int, column: str) -> list[object]:
        """One column over all steps of a rank; steps without it have None."""
        values: list[object] = []
        last = 0
        for event in self.events_of_type(events.Steps, rank):
            assert event.first == last + 1
            last += len(event.ended)
            values += getattr(event, column) or [None] * len(event.ended)
        return values

    def last_observed(self, rank: int) -> events.Observed:
        """What was seen of a rank at last."""
        return self.events_of_type(events.Observed, rank)[-1]

    def disabled_parts(self, rank: int = 0) -> dict[str, str]:
        """The parts that were switched off, and why."""
        return self.last_observed(rank).parts

    def logged_values(self, through: str, rank: int = 0) -> dict[str, list[tuple[int | None, float | None]]]:
        """What was logged through that logger: by name, step and value of each time that it was told."""
        values: dict[str, list[tuple[int | None, float | None]]] = {}
        for event in self.events_of_type(events.Metrics, rank):
            if event.through == through:
                for name, column in event.values.items():
                    points = zip(event.steps, column, strict=True)
                    values.setdefault(name, []).extend(
                        (step, value) for step, value in points if value is not None
                    )
        return values


def script_environment(run: Path | None, **more: str) -> dict[str, str]:
    """What a script is started with; without a run nothing of ours is in it."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("RANKDECK_R") and k != "PYTHONPATH"}
    env.update(OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
    if run is not None:
        env.update(
            PYTHONPATH=str(INJECT), RANKDECK_RUN=str(run), RANKDECK_ATTEMPT="0", RANKDECK_OBSERVE="light"
        )
    return {**env, **more}


def run_script(
    command: list[str | Path],
    run: Path | None,
    *,
    python: str = PYTHON,
    timeout_s: float = 280,
    cwd: Path | None = None,
    **more: str,
) -> ObservedProcess:
    """Run `python command…` to its end, observed if there is a run directory."""
    if run is not None:
        run.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [python, *map(str, command)],
        cwd=cwd,
        env=script_environment(run, **more),
        capture_output=True,
        text=True,
        timeout=scale_timeout(timeout_s),
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return ObservedProcess(
        done.returncode, done.stdout, done.stderr, run, {} if run is None else _read_lines(run)
    )


def observe_script(
    script: str,
    folder: Path,
    *,
    level: str = "light",
    python: str = PYTHON,
    timeout_s: float = 120,
    **more: str,
) -> ObservedProcess:
    """Run the text `script` in `folder`, which has no run yet; it finds rankdeck.

    Level "none" runs it alone.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "script.py"
    file.write_text(script)
    run = None if level == "none" else folder / "run"
    if run is not None:
        more = {"PYTHONPATH": os.pathsep.join((str(INJECT), PRODUCT)), "RANKDECK_OBSERVE": level, **more}
    return run_script([file], run, python=python, timeout_s=timeout_s, cwd=folder, **more)


_FORK_SERVER_CODE = """
import gc, json, os, sys
import torch, torch._dynamo  # the first optimizer would import it, in each child

place, children = sys.argv.pop(1), {}
gc.freeze()
for name in (scripts := json.load(open(os.path.join(place, "scripts.json")))):
    child = os.fork()
    if child == 0:
        os.chdir(os.path.join(place, name))
        os.mkdir(os.environ["RANKDECK_RUN"])
        for number, stream in ((1, "out"), (2, "err")):
            os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT), number)
        break
    children[child] = name
else:
    for child, name in children.items():
        with open(os.path.join(place, name, "status"), "w") as file:
            file.write(str(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
    sys.exit()
exec(compile(scripts[name], name + ".py", "exec"), {"__name__": "__main__"})
"""


def observe_scripts(scripts: Mapping[str, str], folder: Path, **more: str) -> dict[str, ObservedProcess]:
    """Each of these texts, by name, as a Python that ends by itself, observed, in folder/name, with a run of
    its own there: forked children of one that has imported torch, all at once. They find rankdeck."""
    for name in scripts:
        (folder / name).mkdir(parents=True)
    (folder / "scripts.json").write_text(json.dumps(scripts))
    program = folder / "each.py"
    program.write_text(_FORK_SERVER_CODE)
    more = {"PYTHONPATH": os.pathsep.join((str(INJECT), PRODUCT)), **more}
    done = subprocess.run(
        [PYTHON, program, folder],
        env=script_environment(Path("run"), **more),
        capture_output=True,
        text=True,
        timeout=scale_timeout(120),
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return {name: _read_result(folder / name) for name in scripts}


def _read_result(folder: Path) -> ObservedProcess:
    status, out, err = ((folder / name).read_text() for name in ("status", "out", "err"))
    return ObservedProcess(int(status), out, err, folder / "run", _read_lines(folder / "run"))


def _read_lines(run: Path) -> dict[int, list[events.AnyEvent | None]]:
    files = (run / "events").glob("rank-*.jsonl")
    return {
        int(file.name.split("-")[1].split(".")[0]): events.decode_lines(file.read_bytes()) for file in files
    }
