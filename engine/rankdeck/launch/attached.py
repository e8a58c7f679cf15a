"""What a command that stays with its run hands down: its streams, as descriptors that are passed from the
command to the guard to the supervisor.

Where the command's own output is a terminal, so is each rank's (streams.py). Nothing is read from a terminal
down there: a shell may have it back at any time. The command reads it instead, as the process that the shell
suspends and continues, and passes the bytes on through `keyboard`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

_FIRST = 3  # 0, 1 and 2 are the guard's own


@dataclass(frozen=True)
class Attached:
    """The command's descriptors; None where there is none (/dev/null then, or the logs alone).

    `keyboard` is the reading end of a pipe with what was typed. Then rank 0's stdin is a terminal of its own
    and gets these bytes, line editing and signals included, and `stdin` is not used. The command's terminal
    has to pass on every key (ISIG, ICANON, ECHO, ICRNL and IXON off), and has to go on with OPOST: a rank's
    terminal leaves line feeds as they are.
    """

    stdin: int | None = 0
    stdout: int | None = 1
    stderr: int | None = 2
    keyboard: int | None = None

    def duplicated(self) -> Attached:
        """Copies that may be passed on; what is closed is left out."""
        return Attached(**{name: _copy(handle) for name, handle in asdict(self).items()})

    def of_rank(self, rank: int) -> Attached:
        """What one rank gets: what is typed is rank 0's alone."""
        if rank == 0 or self.keyboard is None:
            return self
        return replace(self, stdin=None, keyboard=None)

    def handles(self) -> list[int]:
        return [handle for handle in asdict(self).values() if handle is not None]

    def to_argument(self) -> str:
        return json.dumps(asdict(self))

    def close(self) -> None:
        for handle in self.handles():
            os.close(handle)


NOWHERE = Attached(None, None, None)


def from_argument(text: str) -> Attached:
    values: Mapping[str, int | None] = json.loads(text)
    return Attached(**values)


def _copy(handle: int | None) -> int | None:
    if handle is None:
        return None
    try:
        return fcntl.fcntl(handle, fcntl.F_DUPFD_CLOEXEC, _FIRST)
    except OSError:
        return None
