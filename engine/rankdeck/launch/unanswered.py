"""Connections of ranks to other hosts on which nothing that is sent is acknowledged any more.

Guards hear each other in small packets. A network that brings those, and loses what ranks send (large ones,
or to other ports), closes no connection: ranks wait, and before the first step, where one may build for a
minute, nobody wonders for long. The kernel knows sooner: it sends the same again and again. For a rank that
is slow, stopped or busy its kernel acknowledges all the same. In steps the hang is told, by host_watch.py.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from rankdeck.base.errors import TrainingError
from rankdeck.base.heartbeat import CHECK_STEP, Beat
from rankdeck.base.phrases import phrase
from rankdeck.diagnose.network import SAME_MTU
from rankdeck.launch.children import Child
from rankdeck.launch.layout import Layout

LOST_S = 10.0
"""For so long nothing was acknowledged."""
_FEWEST_TIMES = 4
"""That the kernel has sent the same again by then: one that loses some of all packets gets there sooner."""
_LOOK_S = 1.0
_TABLE = Path("/proc/net/tcp")
_IS_SENT_AGAIN = "01"


class UnansweredWatch:
    """Of the ranks of one host of a run over several; addresses are IPv4."""

    def __init__(self, layout: Layout) -> None:
        self._own = layout.own.name
        self._hosts = {host.address: host.name for host in layout.hosts if host is not layout.own}
        self._seen: dict[str, tuple[float, int]] = {}
        """Of sockets, by inode: since when the same is sent again, and how often that was."""
        self._looked_s = 0.0

    def look(self, ranks: Sequence[Child], beats: Callable[[], Mapping[int, Beat]]) -> None:
        """Again and again. Raises: TrainingError."""
        now_s = time.monotonic()
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        if any(beat.step > 0 or beat.phase == CHECK_STEP for beat in beats().values()):
            return
        before, self._seen = self._seen, {}
        for inode, address, times in _sent_again():
            since_s, times_before = before.get(inode, (now_s, 0))
            since_s = since_s if times >= times_before else now_s  # some was acknowledged meanwhile
            self._seen[inode] = since_s, times
            if address in self._hosts and times >= _FEWEST_TIMES and now_s - since_s >= LOST_S:
                for rank in ranks:
                    if _has_socket(rank.pid, inode):
                        raise self._lost(rank.rank, address)

    def _lost(self, rank: int, address: str) -> TrainingError:
        host = self._hosts[address]
        return TrainingError(
            phrase(
                "Of what it sends to {host} ({address}) nothing has been acknowledged for {seconds} s: the "
                "network between {own} and {host} does not bring it.",
                host=host,
                address=address,
                seconds=round(LOST_S),
                own=self._own,
            ),
            code="network",
            rank=rank,
            advice=phrase(
                "Large packets may be lost on the way (MTU), or a firewall drops what ranks send: rankdeck "
                "doctor --hosts {hosts} tries both. {fix}",
                hosts=f"{self._own},{host}",
                fix=phrase(SAME_MTU),
            ),
        )


def _sent_again() -> Iterator[tuple[str, str, int]]:
    """(inode, the other end's address, how often) of each connection whose last packet is sent once more."""
    try:
        rows = [line.split() for line in _TABLE.read_text().splitlines()[1:]]
    except OSError:
        return
    for _, _, other, _, _, timer, times, _, _, inode, *_ in rows:
        if timer.startswith(_IS_SENT_AGAIN) and int(times, 16):
            packed = struct.pack("=I", int(other.partition(":")[0], 16))
            yield inode, socket.inet_ntoa(packed), int(times, 16)


def _has_socket(pid: int, inode: str) -> bool:
    try:
        return any(_target(handle) == f"socket:[{inode}]" for handle in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False  # the process has gone


def _target(handle: Path) -> str:
    try:
        return str(handle.readlink())
    except OSError:
        return ""  # it was closed meanwhile
