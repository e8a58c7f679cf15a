"""What every device does and sends in one step, in order, as the strategy's own step went in a plan.

    parts of a rank (planner/work.py)  ->  parts of all ranks  ->  intervals and lines on one time axis

A part computes, or moves bytes. Parts of a device follow each other; what is received waits for who sends,
and a collective for all of its group. An interval is as long as its floating point operations; what moves
takes no time, or where it is to be seen (`moving_share`) as long as its bytes. So the order and the bytes are
those of the run, and lengths are no prediction of time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rankdeck.base.phrases import marked
from rankdeck.base.units import format_bytes

SEND, RECEIVE = marked("send"), marked("receive")
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
            if rank == same:
                for part in self.parts[same]:
                    found[part.device].append(part)
                continue
            groups: dict[tuple[int, ...], list[int]] = {}
            for part in self.parts[same]:
                peers = part.peers
                if peers is not None:
                    key = tuple(peers)
                    peers = groups[key] = groups.get(key) or self._moved(peers, same, rank)
                found[rank].append(msgspec.structs.replace(part, device=rank, peers=peers))
        return [found[device] for device in range(max(found, default=-1) + 1)]

    def _moved(self, peers: Iterable[int], same: int, rank: int) -> list[int]:
        """Peers of rank `same` as those of a rank like it: its group varies along the same axes."""
        places = [place_of(peer, self.sizes) for peer in peers]
        own, other = place_of(same, self.sizes), place_of(rank, self.sizes)
        varies = [any(place[axis] != own[axis] for place in places) for axis in range(len(own))]
        moved = []
        for place in places:
            number = 0
            for axis, (_, size) in enumerate(self.sizes):
                number = number * size + (place[axis] if varies[axis] else other[axis])
            moved.append(number)
        return moved


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
    """Bytes that left and are there `at` a moment: from `source` to `target`, or among `group` where both are
    None; of a collective those that each member sends, as over a ring."""

    name: str
    at: float
    num_bytes: int
    source: int | None = None
    target: int | None = None
    group: tuple[int, ...] = ()
    left: float = 0.0

    @property
    def members(self) -> tuple[int, ...]:
        """The devices that it touches."""
        if self.source is None or self.target is None:
            return self.group
        return (self.source, self.target)


class Moves(msgspec.Struct):
    """How often, and how many bytes together."""

    count: int = 0
    num_bytes: int = 0


class DeviceMoves(msgspec.Struct):
    """Of one device in a step. What a ring of a collective passes on is sent and received."""

    sent_bytes: int = 0
    received_bytes: int = 0


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

    def in_words(self) -> str:
        """'all-gather 14.1 MiB in 9, reduce-scatter 11.1 MiB in 5': of all devices together."""
        moved = [
            f"{name} {format_bytes(moves.num_bytes)} in {moves.count}" for name, moves in self.moves().items()
        ]
        return ", ".join(moved) or "nothing"

    def traffic(self) -> list[DeviceMoves]:
        """By device; together they send what `moves` says that moves."""
        found = [DeviceMoves() for _ in self.intervals]
        for line in self.lines:
            for device in line.members:
                found[device].sent_bytes += line.num_bytes * (device != line.target)
                found[device].received_bytes += line.num_bytes * (device != line.source)
        return found

    @property
    def is_pipeline(self) -> bool:
        return any(one.part.microbatch is not None for row in self.intervals for one in row)


def timeline(
    devices: Sequence[Sequence[Part]], moving_share: float = 0.0, *, overlaps: bool = False
) -> Timeline | None:
    """Every device's parts on one axis; None where they are too many.

    With `moving_share` the device that sends most would need that share of its time for it alone, as long as
    it computes for the rest; a pipeline's schedule stays as it is without. `overlaps`: steps are not flushed,
    so what a device takes in one was sent to it in a step before, and it waits for nothing.
    """
    if sum(map(len, devices)) > MOST_PARTS:
        return None
    is_pipeline = any(part.microbatch is not None for parts in devices for part in parts)
    return _Layout(devices, 0.0 if is_pipeline else moving_share, overlaps=overlaps).laid_out()


class _Layout:
    """Takes each device as far as it goes without waiting, again and again."""

    def __init__(self, devices: Sequence[Sequence[Part]], moving_share: float, *, overlaps: bool) -> None:
        self._overlaps = overlaps
        self._parts = [deque(parts) for parts in devices]
        self._now = [0.0] * len(devices)
        self._intervals: list[list[Interval]] = [[] for _ in devices]
        self._lines: list[Line] = []
        self._sent: Mapping[tuple[int, int], deque[float]] = defaultdict(deque)
        flops = [part.flops for parts in devices for part in parts if part.flops]
        self._shortest = sum(flops) / max(1, len(flops)) / 50 if flops else 1.0
        """What computes next to nothing is still seen."""
        sent = max((sum(p.num_bytes for p in parts if p.name != RECEIVE) for parts in devices), default=0)
        computed = max((sum(part.flops for part in parts) for parts in devices), default=0)
        self._per_byte = moving_share / (1 - moving_share) * computed / sent if sent else 0.0
        self._groups: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._link_free = [0.0] * len(devices)
        """A device sends one thing after another, beside what it computes."""

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
        lines = [
            msgspec.structs.replace(line, at=line.at / length, left=line.left / length)
            for line in self._lines
        ]
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
            left = max(self._now[device], self._link_free[device])
            self._link_free[device] = left + part.num_bytes * self._per_byte
            self._sent[device, part.peers[0]].append(left)
            if self._overlaps:
                at = self._link_free[device]
                self._lines.append(Line(SEND, at, part.num_bytes, device, part.peers[0], left=left))
        elif part.name == RECEIVE and not self._overlaps:
            sent = self._sent[part.peers[0], device]
            if not sent:
                return False
            left = sent.popleft()
            at = self._now[device] = max(self._now[device], left + part.num_bytes * self._per_byte)
            self._lines.append(Line(SEND, at, part.num_bytes, part.peers[0], device, left=left))
        elif part.name != RECEIVE:
            return self._meet(part)
        self._parts[device].popleft()
        return True

    def _meet(self, part: Part) -> bool:
        """Whether all of a collective's group stand at it; they go on together."""
        group = self._group_of(part)
        for member in group:
            head = self._parts[member][0] if self._parts[member] else None
            if head is None or head.name != part.name or self._group_of(head) != group:
                return False
        left = max(max(self._now[member], self._link_free[member]) for member in group)
        at = left + part.num_bytes * self._per_byte
        for member in group:
            self._now[member] = at
            self._parts[member].popleft()
        self._lines.append(Line(part.name, at, part.num_bytes, group=group, left=left))
        return True

    def _group_of(self, part: Part) -> tuple[int, ...]:
        peers = tuple(part.peers or ())
        if peers not in self._groups:
            self._groups[peers] = tuple(sorted(set(peers)))
        return self._groups[peers]


def merged(parts: Iterable[Part]) -> list[Part]:
    """Parts that compute one after another under one name as one."""
    found: list[Part] = []
    for part in parts:
        if found and part.peers is None and part == msgspec.structs.replace(found[-1], flops=part.flops):
            found[-1] = msgspec.structs.replace(part, flops=found[-1].flops + part.flops)
        else:
            found.append(part)
    return found
