"""Scripts that do what breaks tools around them: each is what it is alone, and the run says what happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.helpers.cli import FinishedCommand, rankdeck, rankdeck_in_process, start_rankdeck
from tests.helpers.scripts import last_run
from tests.helpers.waiting import scale_timeout

_SLEEPS = "import time; time.sleep(600)"


@dataclass(frozen=True)
class OddScript:
    """A script: what it exits with and prints, and what is said of it."""

    source: str
    out: str = ""
    status: int = 0
    expected_text: str = ""
    ranks: int = 1


ODD_SCRIPTS = {
    "stdout is closed": OddScript(
        "import os\nprint('seen')\nos.close(1)\nos.close(2)\nos._exit(0)", "seen\n"
    ),
    "os._exit(0)": OddScript(
        "import os, atexit\natexit.register(print, 'never')\nprint('on')\nos._exit(0)", "on\n"
    ),
    "os._exit(3)": OddScript(
        "import os\nprint('on')\nos._exit(3)", "on\n", 3, "train.py exited with status 3."
    ),
    "os._exit(3) of a rank": OddScript(
        f"import os\nif os.environ['RANK'] == '1': os._exit(3)\n{_SLEEPS}",
        status=3,
        expected_text="train.py exited with status 3 (rank 1).",
        ranks=2,
    ),
    "os._exit(0) of a rank": OddScript(
        "import os\nif os.environ['RANK'] == '1': os._exit(0)\nprint('on')", "on\n", ranks=2
    ),
    "one rank raises": OddScript(
        f"import os\nif os.environ['RANK'] == '1': raise ValueError('bad batch')\n{_SLEEPS}",
        status=1,
        expected_text="rank 1 raised ValueError: bad batch ({folder}/train.py, line 2)",
        ranks=2,
    ),
    "it interrupts itself": OddScript(
        "raise KeyboardInterrupt", "", 130, "The process was killed by SIGINT."
    ),
    "a thread of C++ outlives it": OddScript(
        "import atexit, os\n"
        "atexit.register(os.abort)\n"
        "atexit.register(os.write, 2, b'terminate called without an active exception\\n')\n"
        "raise ValueError('bad batch')",
        status=134,
        expected_text="The script raised ValueError: bad batch ({folder}/train.py, line 4)",
    ),
    "a thread raises, and it exits": OddScript(
        "import sys, threading\n"
        "def load():\n    raise ValueError('bad row')\n"
        "thread = threading.Thread(target=load)\nthread.start()\nthread.join()\nsys.exit(1)",
        status=1,
        expected_text="train.py exited with status 1. Before that it raised ValueError: bad row (in a "
        "thread; {folder}/train.py, line 3)",
    ),
    "it crashes": OddScript(
        "import ctypes\nctypes.string_at(0)", "", 139, "The process was killed by SIGSEGV."
    ),
}


@pytest.fixture
def folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a person who has a sitecustomize."""
    site_folder = project / "own"
    site_folder.mkdir()
    (site_folder / "sitecustomize.py").write_text("OWN = 'mine'\n")
    monkeypatch.setenv("PYTHONPATH", f"{os.environ['PYTHONPATH']}{os.pathsep}{site_folder}")
    return project


def _run_with_python(folder: Path) -> FinishedCommand:
    done = subprocess.run(
        [sys.executable, "-u", "train.py"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=scale_timeout(60),
        check=False,
    )
    status = 128 - done.returncode if done.returncode < 0 else done.returncode
    return FinishedCommand(status, done.stdout, done.stderr)


def _added_lines(alone: FinishedCommand, ours: FinishedCommand) -> list[str]:
    """What Rankdeck has said behind what the script has written, where everything else is the same."""
    assert (ours.out, ours.exit_code) == (alone.out, alone.exit_code)
    first, _, remainder = ours.err.partition("\n")
    assert first.startswith("python: ") and remainder.startswith(alone.err)
    return remainder.removeprefix(alone.err).splitlines()


# What is said of these is also tried in tests/engine/launch/test_scripts.py.
SLOW_ODD_SCRIPTS = (
    "os._exit(3)",
    "os._exit(3) of a rank",
    "os._exit(0) of a rank",
    "one rank raises",
    "it interrupts itself",
)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW_ODD_SCRIPTS else ()) for name in ODD_SCRIPTS],
)
def test_an_odd_script_behaves_as_under_python(folder: Path, name: str) -> None:
    odd = ODD_SCRIPTS[name]
    (folder / "train.py").write_text(odd.source + "\n")
    ours = rankdeck("run", "--nproc-per-node", str(odd.ranks), "train.py", cwd=folder)
    lines = _added_lines(_run_with_python(folder), ours) if odd.ranks == 1 else ours.err.splitlines()[1:]
    assert (ours.exit_code, ours.out) == (odd.status, odd.out)
    ended = f"failed with exit status {odd.status} after " if odd.status else "completed after "
    run = last_run()
    assert lines[-1].startswith(ended) and lines[-1].endswith(f"; rankdeck show {run.name}")
    show_result = rankdeck_in_process("show", run.name, exit_code=0)
    assert "note         no optimizer step was observed" in show_result.out
    if odd.expected_text:
        expected = odd.expected_text.format(folder=folder)
        assert expected in lines[-4:-2] and expected in show_result.err
    else:
        assert len(lines) == 1 and not show_result.err


EVERYTHING = """
import io, multiprocessing, os, sys

def train(steps, *optimizers):
    for optimizer in optimizers * steps:
        optimizer.zero_grad()
        loss = sum(p.square().sum() for p in optimizer.param_groups[0]["params"])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())

class Shouting(io.TextIOBase):
    def write(self, text):
        return sys.__stdout__.write(text.upper())

if __name__ == "__main__":
    if len(sys.argv) == 1:
        print("once more", flush=True)
        os.execv(sys.executable, [sys.executable, __file__, "again"])
    import torch
    sys.stdout = Shouting()
    theirs, called, losses = torch.Tensor.backward, [], []
    def backward(self, *args, **kwargs):
        called.append(self)
        return theirs(self, *args, **kwargs)
    torch.Tensor.backward = backward
    torch.manual_seed(0)
    models = [torch.nn.Linear(2, 2), torch.nn.Linear(3, 3)]
    critic = torch.optim.SGD(models[0].parameters(), lr=0.1)
    generator = torch.optim.Adam(models[1].parameters(), lr=0.1)
    train(10, critic, generator)
    child = multiprocessing.get_context("fork").Process(target=train, args=(5, critic))
    child.start()
    child.join()
    spawned = multiprocessing.get_context("spawn").Process(target=print, args=("spawned",))
    spawned.start()
    spawned.join()
    print(sys.modules["sitecustomize"].OWN, child.exitcode, spawned.exitcode)
    print(len(called), torch.Tensor.backward is backward)
    print(losses[-1])
    raise RuntimeError("over")
"""


@pytest.mark.slow
def test_a_script_with_all_oddities_behaves_as_under_python(folder: Path) -> None:
    """Executes itself, replaces Tensor.backward and stdout, has two optimizers, forks, spawns, raises."""
    (folder / "train.py").write_text(EVERYTHING)
    ours = rankdeck("run", "train.py", cwd=folder)
    added_lines = _added_lines(_run_with_python(folder), ours)
    lines = ours.out.splitlines()
    assert (ours.exit_code, lines[:4]) == (1, ["once more", "spawned", "MINE 0 0", "20 TRUE"])
    assert added_lines[0].startswith("The script raised RuntimeError: over (")
    facts = rankdeck_in_process("show", "last", "--json", exit_code=0).json
    assert [rank["steps"] for rank in facts["observed"]["ranks"]] == [10, 5]
    assert (facts["steps"], facts["observed"]["optimizer"]) == (10, "torch.optim.adam:Adam")
    assert facts["loss"]["last"] == pytest.approx(float(lines[4]))
    assert facts["notes"][0] == "SGD also stepped 10 times, in addition to the main optimizer"


HANG_SCRIPT = """
import os, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(10):
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
if dist.get_rank() == 1:
    time.sleep(600)
dist.all_reduce(torch.ones(1))
"""


@pytest.mark.slow
def test_a_rank_missing_in_a_collective_is_reported_on_stderr(folder: Path) -> None:
    """The command goes on until somebody ends it."""
    (folder / "train.py").write_text(HANG_SCRIPT)
    with start_rankdeck("run", "--nproc-per-node", "2", "train.py", cwd=folder) as command:
        assert command.stderr is not None
        message = next(line for line in command.stderr if line.startswith("rank 1: No progress for "))
        command.send_signal(signal.SIGTERM)
        assert (
            f"({folder}/train.py, line 10), while the other ranks are waiting in all_reduce number "
            in message
        )
        assert command.wait(scale_timeout(40)) == 143
        assert "stopped with exit status 143 after " in command.stderr.read()
