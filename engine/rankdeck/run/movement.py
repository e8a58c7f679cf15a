"""What every device does and sends in one step, in order, as the strategy's own step went in a plan.

    parts of a rank (planner/recording.py)  ->  parts of all ranks  ->  intervals and lines on one time axis

A part computes, or moves bytes. Parts of a device follow each other; what is received waits for who sends,
and a collective for all of its group. An interval is as long as its floating point operations; what moves
takes no time. So the order and the bytes are those of the run, and lengths are no prediction of time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

SEND, RECEIVE = "send", "receive"
MOST_PARTS = 20_000
"""Of all devices together; a step of more is not laid out."""


class Part(msgspec.Struct, array_like=True, frozen=True):
    """`device` is a place in the run. With `peers` it moves `num_bytes`: to or from one device (SEND,
    RECEIVE), or among the group that they are, this device included. Else it computes `flops`."""

    name: str
    device: int
    flops: int = 0
    num_bytes: int = 0
    peers: list[int] | None = None
    stage: int | None = None
    microbatch: int | None = None


class Movement(msgspec.Struct):
    """`parts[r]` are those of rank r in order; `standing[r]` is the rank whose parts rank r has as well, with
    other peers. `sizes` are the axes of the mesh of ranks, the last one running fastest."""

    parts: dict[int, list[Part]]
    standing: list[int]
    sizes: list[tuple[str, int]]

    def by_device(self) -> list[list[Part]]:
        """Every device's parts, in order."""
        found: dict[int, list[Part]] = defaultdict(list)
        for rank, same in enumerate(self.standing):
            for part in self.parts[same]:
                found[part.device if rank == same else rank].append(self._moved(part, same, rank))
        return [found[device] for device in range(max(found, default=-1) + 1)]

    def _moved(self, part: Part, same: int, rank: int) -> Part:
        """A part of rank `same` as one of a rank like it: its group varies along the same axes."""
        if rank == same or part.peers is None:
            return part if rank == same else msgspec.structs.replace(part, device=rank)
        places = [place_of(peer, self.sizes) for peer in part.peers]
        own, other = place_of(same, self.sizes), place_of(rank, self.sizes)
        varies = [any(place[axis] != own[axis] for place in places) for axis in range(len(own))]
        peers = []
        for place in places:
            number = 0
            for axis, (_, size) in enumerate(self.sizes):
                number = number * size + (place[axis] if varies[axis] else other[axis])
            peers.append(number)
        return msgspec.structs.replace(part, device=rank, peers=peers)


def place_of(rank: int, sizes: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """Where a rank stands on each axis."""
    place = []
    for _, size in reversed(sizes):
        rank, at = divmod(rank, size)
        place.append(at)
    return tuple(reversed(place))


def talks_alone(rank: int, parts: Iterable[Part], sizes: Sequence[tuple[str, int]]) -> bool:
    """Whether a rank sends to single others along an axis on which ranks are alike: then those do not send
    as it does, though they hold as much."""
    own = place_of(rank, sizes)
    return any(
        at != here and axis != "stage"
        for part in parts
        if part.peers is not None and part.name in (SEND, RECEIVE)
        for (axis, _), at, here in zip(sizes, place_of(part.peers[0], sizes), own, strict=True)
    )


class Interval(msgspec.Struct, frozen=True):
    """A part that computes, from `start` to `end`: shares of the step's length."""

    part: Part
    start: float
    end: float


class Line(msgspec.Struct, frozen=True):
    """Bytes that move at a moment: from `source` to `target`, or among `group` where both are None."""

    name: str
    at: float
    num_bytes: int
    source: int | None = None
    target: int | None = None
    group: tuple[int, ...] = ()


class Moves(msgspec.Struct):
    """How often, and how many bytes together."""

    count: int = 0
    num_bytes: int = 0


class Timeline(msgspec.Struct):
    intervals: list[list[Interval]]
    """By device."""
    lines: list[Line]
    is_whole: bool
    """False where a device waits for what nobody sends: then the rest is left out."""

    def moves(self) -> dict[str, Moves]:
        """What moves in a step, by what it is called; of a collective each member's bytes."""
        found: dict[str, Moves] = {}
        for line in self.lines:
            moves = found.setdefault(line.name, Moves())
            moves.count += 1
            moves.num_bytes += line.num_bytes * max(1, len(line.group))
        return found


def timeline(devices: Sequence[Sequence[Part]]) -> Timeline | None:
    """Every device's parts on one axis; None where they are too many."""
    if sum(map(len, devices)) > MOST_PARTS:
        return None
    return _Layout(devices).laid_out()


class _Layout:
    """Takes each device as far as it goes without waiting, again and again."""

    def __init__(self, devices: Sequence[Sequence[Part]]) -> None:
        self._parts = [deque(parts) for parts in devices]
        self._now = [0.0] * len(devices)
        self._intervals: list[list[Interval]] = [[] for _ in devices]
        self._lines: list[Line] = []
        self._sent: Mapping[tuple[int, int], deque[float]] = defaultdict(deque)
        flops = [part.flops for parts in devices for part in parts if part.flops]
        self._shortest = sum(flops) / max(1, len(flops)) / 50 if flops else 1.0
        """What computes next to nothing is still seen."""

    def laid_out(self) -> Timeline:
        waits = False
        while not waits:
            came = [self._advance(device) for device in range(len(self._parts))]
            waits = not any(came)
        length = max(self._now, default=0.0) or 1.0
        intervals = [
            [Interval(one.part, one.start / length, one.end / length) for one in row]
            for row in self._intervals
        ]
        lines = [msgspec.structs.replace(line, at=line.at / length) for line in self._lines]
        return Timeline(intervals, sorted(lines, key=lambda line: line.at), not any(self._parts))

    def _advance(self, device: int) -> bool:
        """Whether the device came any further."""
        parts, came = self._parts[device], False
        while parts and self._take(device, parts[0]):
            came = True
        return came

    def _take(self, device: int, part: Part) -> bool:
        if part.peers is None:
            start = self._now[device]
            self._now[device] = start + max(part.flops, self._shortest)
            self._intervals[device].append(Interval(part, start, self._now[device]))
        elif part.name == SEND:
            self._sent[device, part.peers[0]].append(self._now[device])
        elif part.name == RECEIVE:
            sent = self._sent[part.peers[0], device]
            if not sent:
                return False
            at = self._now[device] = max(self._now[device], sent.popleft())
            self._lines.append(Line(SEND, at, part.num_bytes, part.peers[0], device))
        else:
            return self._meet(part)
        self._parts[device].popleft()
        return True

    def _meet(self, part: Part) -> bool:
        """Whether all of a collective's group stand at it; they go on together."""
        assert part.peers is not None
        group = sorted(set(part.peers))
        heads = [self._parts[member][0] if self._parts[member] else None for member in group]
        if not all(
            head is not None and head.name == part.name and sorted(set(head.peers or ())) == group
            for head in heads
        ):
            return False
        at = max(self._now[member] for member in group)
        for member in group:
            self._now[member] = at
            self._parts[member].popleft()
        self._lines.append(Line(part.name, at, part.num_bytes, group=tuple(group)))
        return True


def merged(parts: Iterable[Part]) -> list[Part]:
    """Parts that compute one after another under one name as one."""
    found: list[Part] = []
    for part in parts:
        if found and part.peers is None and part == msgspec.structs.replace(found[-1], flops=part.flops):
            found[-1] = msgspec.structs.replace(part, flops=found[-1].flops + part.flops)
        else:
            found.append(part)
    return found
