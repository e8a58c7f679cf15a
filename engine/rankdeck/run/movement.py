"""What every device does and sends in one step, in order, as the strategy's own step went in a plan.

    parts of a rank (planner/step_cost.py)  ->  parts of all ranks  ->  intervals and lines on one time axis

A part computes, or moves bytes. Parts of a device follow each other; what is received waits for who sends,
and a collective for all of its group. An interval is as long as its floating point operations; what moves
takes no time, or where it is to be seen (`moving_share`) as long as its bytes. So the order and the bytes are
those of the run, and lengths are no prediction of time.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes

SEND, RECEIVE = tr_noop("send"), tr_noop("receive")
MAX_OPERATIONS = 20_000
"""Of all devices together; a step of more is not laid out."""


class Operation(msgspec.Struct, array_like=True, frozen=True):
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

    parts: dict[int, list[Operation]]
    standing: list[int]
    sizes: list[tuple[str, int]]

    def by_device(self) -> list[list[Operation]]:
        """Every device's parts, in order."""
        found: dict[int, list[Operation]] = defaultdict(list)
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
                    peers = groups[key] = groups.get(key) or self._translate_peers(peers, same, rank)
                found[rank].append(msgspec.structs.replace(part, device=rank, peers=peers))
        return [found[device] for device in range(max(found, default=-1) + 1)]

    def _translate_peers(self, peers: Iterable[int], same: int, rank: int) -> list[int]:
        """Peers of rank `same` as those of a rank like it: its group varies along the same axes."""
        places = [mesh_coordinate(peer, self.sizes) for peer in peers]
        own, other = mesh_coordinate(same, self.sizes), mesh_coordinate(rank, self.sizes)
        varies = [any(place[axis] != own[axis] for place in places) for axis in range(len(own))]
        moved = []
        for place in places:
            number = 0
            for axis, (_, size) in enumerate(self.sizes):
                number = number * size + (place[axis] if varies[axis] else other[axis])
            moved.append(number)
        return moved


def mesh_coordinate(rank: int, sizes: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """Where a rank stands on each axis."""
    place = []
    for _, size in reversed(sizes):
        rank, at = divmod(rank, size)
        place.append(at)
    return tuple(reversed(place))


def has_private_peers(rank: int, parts: Iterable[Operation], sizes: Sequence[tuple[str, int]]) -> bool:
    """Whether a rank sends to single others along an axis on which ranks are alike: then those do not send
    as it does, though they hold as much."""
    own = mesh_coordinate(rank, sizes)
    return any(
        at != here and axis != "stage"
        for part in parts
        if part.peers is not None and part.name in (SEND, RECEIVE)
        for (axis, _), at, here in zip(sizes, mesh_coordinate(part.peers[0], sizes), own, strict=True)
    )


class Interval(msgspec.Struct, frozen=True):
    """A part that computes, from `start` to `end`: shares of the step's length."""

    part: Operation
    start: float
    end: float


class Transfer(msgspec.Struct, frozen=True):
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


class TrafficTotal(msgspec.Struct):
    """How often, and how many bytes together."""

    count: int = 0
    num_bytes: int = 0


class DeviceTraffic(msgspec.Struct):
    """Of one device in a step. What a ring of a collective passes on is sent and received."""

    sent_bytes: int = 0
    received_bytes: int = 0


class Timeline(msgspec.Struct):
    intervals: list[list[Interval]]
    """By device."""
    lines: list[Transfer]
    is_whole: bool
    """False where a device waits for what nobody sends: then the rest is left out."""

    def traffic_by_operation(self) -> dict[str, TrafficTotal]:
        """What moves in a step, by what it is called; of a collective each member's bytes."""
        found: dict[str, TrafficTotal] = {}
        for line in self.lines:
            moves = found.setdefault(line.name, TrafficTotal())
            moves.count += 1
            moves.num_bytes += line.num_bytes * max(1, len(line.group))
        return found

    def text(self) -> str:
        """'all-gather 14.1 MiB in 9, reduce-scatter 11.1 MiB in 5': of all devices together."""
        moved = [
            f"{name} {format_bytes(moves.num_bytes)} in {moves.count}"
            for name, moves in self.traffic_by_operation().items()
        ]
        return ", ".join(moved) or "nothing"

    def traffic(self) -> list[DeviceTraffic]:
        """By device; together they send what `traffic_by_operation` says that moves."""
        found = [DeviceTraffic() for _ in self.intervals]
        for line in self.lines:
            for device in line.members:
                found[device].sent_bytes += line.num_bytes * (device != line.target)
                found[device].received_bytes += line.num_bytes * (device != line.source)
        return found

    @property
    def is_pipeline(self) -> bool:
        return any(one.part.microbatch is not None for row in self.intervals for one in row)


def build_timeline(
    devices: Sequence[Sequence[Operation]], communication_share: float = 0.0, *, overlaps: bool = False
) -> Timeline | None:
    """Every device's parts on one axis; None where they are too many.

    With `communication_share` the device that sends most would need that share of its time for it alone, as
    long as it computes for the rest; a pipeline's schedule stays as it is without. `overlaps`: steps are not
    flushed, so what a device takes in one was sent to it in a step before, and it waits for nothing.
    """
    if sum(map(len, devices)) > MAX_OPERATIONS:
        return None
    is_pipeline = any(part.microbatch is not None for parts in devices for part in parts)
    return _TimelineBuilder(devices, 0.0 if is_pipeline else communication_share, overlaps=overlaps).build()


class _TimelineBuilder:
    """Takes each device as far as it goes without waiting, again and again."""

    def __init__(
        self, devices: Sequence[Sequence[Operation]], moving_share: float, *, overlaps: bool
    ) -> None:
        self._overlaps = overlaps
        self._parts = [deque(parts) for parts in devices]
        self._now = [0.0] * len(devices)
        self._intervals: list[list[Interval]] = [[] for _ in devices]
        self._lines: list[Transfer] = []
        self._sent: Mapping[tuple[int, int], deque[float]] = defaultdict(deque)
        flops = [part.flops for parts in devices for part in parts if part.flops]
        self._min_duration = sum(flops) / max(1, len(flops)) / 50 if flops else 1.0
        """What computes next to nothing is still seen."""
        sent = max((sum(p.num_bytes for p in parts if p.name != RECEIVE) for parts in devices), default=0)
        computed = max((sum(part.flops for part in parts) for parts in devices), default=0)
        self._time_per_byte = moving_share / (1 - moving_share) * computed / sent if sent else 0.0
        self._group_cache: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._link_free_at = [0.0] * len(devices)
        """A device sends one thing after another, beside what it computes."""

    def build(self) -> Timeline:
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
        while parts and self._place_operation(device, parts[0]):
            came = True
        return came

    def _place_operation(self, device: int, part: Operation) -> bool:
        if part.peers is None:
            start = self._now[device]
            self._now[device] = start + max(part.flops, self._min_duration)
            self._intervals[device].append(Interval(part, start, self._now[device]))
        elif part.name == SEND:
            left = max(self._now[device], self._link_free_at[device])
            self._link_free_at[device] = left + part.num_bytes * self._time_per_byte
            self._sent[device, part.peers[0]].append(left)
            if self._overlaps:
                at = self._link_free_at[device]
                self._lines.append(Transfer(SEND, at, part.num_bytes, device, part.peers[0], left=left))
        elif part.name == RECEIVE and not self._overlaps:
            sent = self._sent[part.peers[0], device]
            if not sent:
                return False
            left = sent.popleft()
            at = self._now[device] = max(self._now[device], left + part.num_bytes * self._time_per_byte)
            self._lines.append(Transfer(SEND, at, part.num_bytes, part.peers[0], device, left=left))
        elif part.name != RECEIVE:
            return self._place_collective(part)
        self._parts[device].popleft()
        return True

    def _place_collective(self, part: Operation) -> bool:
        """Whether all of a collective's group stand at it; they go on together."""
        group = self._group_of(part)
        for member in group:
            head = self._parts[member][0] if self._parts[member] else None
            if head is None or head.name != part.name or self._group_of(head) != group:
                return False
        left = max(max(self._now[member], self._link_free_at[member]) for member in group)
        at = left + part.num_bytes * self._time_per_byte
        for member in group:
            self._now[member] = at
            self._parts[member].popleft()
        self._lines.append(Transfer(part.name, at, part.num_bytes, group=group, left=left))
        return True

    def _group_of(self, part: Operation) -> tuple[int, ...]:
        peers = tuple(part.peers or ())
        if peers not in self._group_cache:
            self._group_cache[peers] = tuple(sorted(set(peers)))
        return self._group_cache[peers]


def merge_operations(parts: Iterable[Operation]) -> list[Operation]:
    """Parts that compute one after another under one name as one."""
    found: list[Operation] = []
    for part in parts:
        if found and part.peers is None and part == msgspec.structs.replace(found[-1], flops=part.flops):
            found[-1] = msgspec.structs.replace(part, flops=found[-1].flops + part.flops)
        else:
            found.append(part)
    return found
