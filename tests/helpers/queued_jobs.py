"""Jobs for the queue that write down that they ran, and complain if another job has one of their devices."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from rankdeck.base.home import config_dir
from rankdeck.queue.entry import Entry
from rankdeck.queue.spool import Spool
from tests.helpers.cli import rankdeck
from tests.helpers.waiting import wait_until

JOB = """
import fcntl, json, os, sys, time
name, seconds, status = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
log = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
with open(os.path.join(os.environ["RANKDECK_RUN"], "environment.json")) as file:
    queue = json.load(file).get("queue", {})
for device in queue.get("devices", []):
    handle = os.open(f"{device}.test-lock", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(log, f"conflict {name} {device}\\n".encode())
os.write(log, f"begin {name} {queue.get('start')}\\n".encode())
time.sleep(seconds)
os.write(log, f"end {name} {queue.get('start')}\\n".encode())
sys.exit(status)
"""
"""Arguments: its name, the seconds that it takes, and its exit status."""


@dataclass(frozen=True)
class Log:
    """What the jobs wrote: the starts of each that began and that ended, and conflicts over devices."""

    began: Counter[tuple[str, int]]
    ended: Counter[tuple[str, int]]
    order: list[str]
    conflicts: list[str]


def write_slots(number: int) -> None:
    config_dir().mkdir(parents=True, exist_ok=True)
    (config_dir() / "settings.toml").write_text(f"[queue]\ncpu_slots = {number}\n", "utf-8")


def read_log(folder: Path) -> Log:
    lines = (folder / "log.txt").read_text("utf-8").splitlines() if (folder / "log.txt").exists() else []
    words = [line.split() for line in lines]

    def count(kind: str) -> Counter[tuple[str, int]]:
        return Counter((name, int(start)) for first, name, start in words if first == kind)

    return Log(
        count("begin"),
        count("end"),
        [name for kind, name, _ in words if kind == "begin"],
        [line for line in lines if line.startswith("conflict")],
    )


def add_job(name: str, *options: str, seconds: float = 0.0, status: int = 0) -> int:
    """Add a job and return the number of its entry."""
    command = ["queue", "add", "--name", name, *options, "--", "run", "--observe", "none", "job.py"]
    return int(rankdeck(*command, name, str(seconds), str(status), exit_code=0).out)


def entry_of(spool: Spool, number: int) -> Entry:
    entry = spool.entry(number)
    assert entry is not None
    return entry


def wait_for_state(spool: Spool, number: int, *states: str) -> Entry:
    """Return the entry once it has one of these states."""
    wait_until(
        lambda: entry_of(spool, number).state in states,
        deadline_s=60,
        what=f"entry {number} becoming {' or '.join(states)}",
    )
    return entry_of(spool, number)
