"""An entry of the queue, as its JSON file stores it: what to run, what it needs, and its starts so far.

The configuration is in a TOML file beside it (`RunConfig` or `ScriptConfig`), and the environment in a third
file. All three are readable by their owner only, because they may contain secrets.
"""

from __future__ import annotations

from typing import Literal

import msgspec

MAX_INTERRUPTIONS = 3
"""Number of times that an entry is continued after its run was lost, for example after a power failure."""

FINISHED_STATES = ("completed", "failed", "stopped", "removed")


class Start(msgspec.Struct, omit_defaults=True):
    """One start of an entry.

    `devices`: names of the leases that the run holds. `run`: path of the run directory, recorded before the
    run's guard starts. `attempt`: the attempt of that run. `is_observed`: the dispatcher has found the run in
    its directory. `outcome`: completed | failed | stopped | lost | not-started; empty while it is unknown.
    """

    at: float
    devices: list[str]
    run: str = ""
    attempt: int = 0
    is_observed: bool = False
    outcome: str = ""
    ended_at: float | None = None
    error: str = ""


class Need(msgspec.Struct, omit_defaults=True):
    """The devices that an entry needs.

    `kind`: "cpu" for CPU slots, "gpu" for GPUs. `gpus`: indices or UUIDs of these very GPUs; if it is empty,
    any GPUs serve. `num_devices`: number of devices; 0 means all GPUs that are free, at least one.
    `free_bytes`: memory that must be free on each GPU; 0 if it is unknown.
    """

    kind: Literal["cpu", "gpu"]
    num_devices: int
    gpus: list[str] = []
    free_bytes: int = 0


class Entry(msgspec.Struct, omit_defaults=True):
    """An entry of the queue.

    `number` identifies the entry for its user, and `key` identifies it in run directories: a number is used
    again if the spool folder is deleted. `kind`: "train" for a configuration, "script" for a user's script.
    `command`: arguments of `rankdeck` that would start the run directly.
    `position`: entries of the same priority start in ascending order of their positions. `commit`: commit of
    the code's folder at the time of `added_at`. `not_before`: earliest start (Unix seconds). `after`: numbers
    of entries that must have completed before. `retries`: number of times that the entry starts again after a
    failure. `blocked_since`: when the entry became the first one that had to wait for devices.
    """

    number: int
    key: str
    name: str
    kind: Literal["train", "script"]
    command: list[str]
    folder: str
    runs: str
    python: str
    need: Need
    added_at: float
    position: float
    commit: str | None = None
    priority: int = 0
    not_before: float = 0.0
    after: list[int] = []
    retries: int = 0
    is_held: bool = False
    is_removed: bool = False
    waits_for: str = ""
    blocked_since: float | None = None
    starts: list[Start] = []

    @property
    def last_start(self) -> Start | None:
        return self.starts[-1] if self.starts else None

    @property
    def is_running(self) -> bool:
        """Whether the last start has not ended, as far as the queue knows."""
        return bool(self.starts) and not self.starts[-1].outcome

    @property
    def num_failures(self) -> int:
        return sum(start.outcome == "failed" for start in self.starts)

    @property
    def num_interruptions(self) -> int:
        return sum(start.outcome == "lost" for start in self.starts)

    @property
    def wants_start(self) -> bool:
        """Whether the entry's policy asks for a start: its first one, a retry, or one after an interruption.

        A start that never happened does not count.
        """
        if self.is_removed or self.is_running:
            return False
        last = next((start for start in reversed(self.starts) if start.outcome != "not-started"), None)
        if last is None:
            return True
        if last.outcome == "failed":
            return self.num_failures <= self.retries
        return last.outcome == "lost" and self.num_interruptions <= MAX_INTERRUPTIONS

    @property
    def state(self) -> str:
        """State of the entry: running | held | waiting | completed | failed | stopped | removed."""
        if self.is_running:
            return "running"
        if self.is_removed:
            return "removed"
        if self.wants_start:
            return "held" if self.is_held else "waiting"
        last = next(start for start in reversed(self.starts) if start.outcome != "not-started")
        return "failed" if last.outcome == "lost" else last.outcome

    @property
    def is_finished(self) -> bool:
        return self.state in FINISHED_STATES
