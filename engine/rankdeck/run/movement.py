"""Lay out the computations and transfers of every device in one planned step on a time axis.

    operations of a rank (planner/step_cost.py)  ->  operations of all ranks  ->  intervals and transfers

An operation either computes or moves bytes. A device's operations follow one another; a receive waits for its
sender, and a collective for its whole group. The length of an interval is proportional to the operation's
FLOPs. A transfer takes no time, or, if `communication_share` is set, a time proportional to its bytes. So the
order and the bytes match the run, but the lengths do not predict times.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rankdeck.base.phrases import tr_noop
from rankdeck.base.units import format_bytes

SEND, RECEIVE = tr_noop("send"), tr_noop("receive")
MAX_OPERATIONS = 20_000
"""Maximum number of operations of all devices together; a step with more operations is not laid out."""


class Operation(msgspec.Struct, array_like=True, frozen=True):
    """An operation on the run's device `device`: it moves `num_bytes` if `peers` is set, else it computes
    `flops`.

    Bytes move to or from one peer (SEND, RECEIVE), or within the group `peers`, which includes this device.
    """

    name: str
    device: int
    flops: int = 0
    num_bytes: int = 0
    peers: list[int] | None = None
    stage: int | None = None
    microbatch: int | None = None


class Movement(msgspec.Struct):
    """Operations of all ranks. `parts[r]` are the operations of rank r, in order.

    `standing[r]` is the rank that represents rank r: both have the same operations, but with different peers.
    `sizes` lists the axes of the rank mesh with their sizes; the last axis varies fastest.
    """

    parts: dict[int, list[Operation]]
    standing: list[int]
    sizes: list[tuple[str, int]]

    def by_device(self) -> list[list[Operation]]:
        """Return every device's operations, in order."""
        operations: dict[int, list[Operation]] = defaultdict(list)
        for rank, same in enumerate(self.standing):
            if rank == same:
                for operation in self.parts[same]:
                    operations[operation.device].append(operation)
                continue
            groups: dict[tuple[int, ...], list[int]] = {}
            for operation in self.parts[same]:
                peers = operation.peers
                if peers is not None:
                    key = tuple(peers)
                    # Cached, as the same group occurs in many operations.
                    peers = groups[key] = groups.get(key) or self._translate_peers(peers, same, rank)
                operations[rank].append(msgspec.structs.replace(operation, device=rank, peers=peers))
        return [operations[device] for device in range(max(operations, default=-1) + 1)]

    def _translate_peers(self, peers: Iterable[int], same: int, rank: int) -> list[int]:
        """Return the peers of rank `rank` that correspond to `peers`, the peers of rank `same`.

        A corresponding peer has the original peer's coordinates on the mesh axes along which `peers` differ
        from `same`, and the coordinates of `rank` on all other axes.
        """
        coordinates = [mesh_coordinate(peer, self.sizes) for peer in peers]
        base_coordinate, other = mesh_coordinate(same, self.sizes), mesh_coordinate(rank, self.sizes)
        varies = [
            any(coordinate[axis] != base_coordinate[axis] for coordinate in coordinates)
            for axis in range(len(base_coordinate))
        ]
        moved = []
        for coordinate in coordinates:
            number = 0
            for axis, (_, size) in enumerate(self.sizes):
                number = number * size + (coordinate[axis] if varies[axis] else other[axis])
            moved.append(number)
        return moved


def mesh_coordinate(rank: int, sizes: Sequence[tuple[str, int]]) -> tuple[int, ...]:
    """Return a rank's coordinate on each axis."""
    coordinate = []
    for _, size in reversed(sizes):
        rank, at = divmod(rank, size)
        coordinate.append(at)
    return tuple(reversed(coordinate))


def has_private_peers(rank: int, operations: Iterable[Operation], sizes: Sequence[tuple[str, int]]) -> bool:
    """Check whether a rank sends to or receives from a peer with a different coordinate on a non-stage axis.

    Ranks along such an axis use the same amount of memory but have different peers, so no rank can
    represent the others.
    """
    coordinate = mesh_coordinate(rank, sizes)
    return any(
        at != here and axis != "stage"
        for operation in operations
        if operation.peers is not None and operation.name in (SEND, RECEIVE)
        for (axis, _), at, here in zip(
            sizes, mesh_coordinate(operation.peers[0], sizes), coordinate, strict=True
        )
    )


class Interval(msgspec.Struct, frozen=True):
    """The interval of a compute operation, from `start` to `end` as fractions of the step's length."""

    operation: Operation
    start: float
    end: float


class Transfer(msgspec.Struct, frozen=True):
    """A transfer of `num_bytes` bytes, which starts at time `left` and ends at time `at`.

    The bytes go from `source` to `target`, or are exchanged within `group` (then `source` and `target` are
    None). For a collective, `num_bytes` is the amount that each member sends, as in a ring.
    """

    name: str
    at: float
    num_bytes: int
    source: int | None = None
    target: int | None = None
    group: tuple[int, ...] = ()
    left: float = 0.0

    @property
    def members(self) -> tuple[int, ...]:
        """The devices that take part in the transfer."""
        if self.source is None or self.target is None:
            return self.group
        return (self.source, self.target)


class TrafficTotal(msgspec.Struct):
    """Number of transfers, and their total bytes."""

    count: int = 0
    num_bytes: int = 0


class DeviceTraffic(msgspec.Struct):
    """Traffic of one device in a step. Bytes forwarded in a collective's ring count as both sent and
    received."""

    sent_bytes: int = 0
    received_bytes: int = 0


class Timeline(msgspec.Struct):
    intervals: list[list[Interval]]
    """Intervals of each device, by device index."""
    lines: list[Transfer]
    is_whole: bool
    """Whether all operations are laid out; False if a device waits for data that no device sends."""

    def traffic_by_operation(self) -> dict[str, TrafficTotal]:
        """Return the traffic of a step by operation name; a collective's bytes are the sum of the bytes of
        all members."""
        totals: dict[str, TrafficTotal] = {}
        for line in self.lines:
            moves = totals.setdefault(line.name, TrafficTotal())
            moves.count += 1
            moves.num_bytes += line.num_bytes * max(1, len(line.group))
        return totals

    def text(self) -> str:
        """Format the total traffic, as in 'all-gather 14.1 MiB (9×), reduce-scatter 11.1 MiB (5×)'."""
        moved = [
            f"{name} {format_bytes(moves.num_bytes)} ({moves.count}×)"
            for name, moves in self.traffic_by_operation().items()
        ]
        return ", ".join(moved) or "nothing"

    def traffic(self) -> list[DeviceTraffic]:
        """Return the traffic by device; the sent bytes add up to those of `traffic_by_operation`."""
        devices = [DeviceTraffic() for _ in self.intervals]
        for line in self.lines:
            for device in line.members:
                devices[device].sent_bytes += line.num_bytes * (device != line.target)
                devices[device].received_bytes += line.num_bytes * (device != line.source)
        return devices

    @property
    def is_pipeline(self) -> bool:
        return any(interval.operation.microbatch is not None for row in self.intervals for interval in row)


def build_timeline(
    devices: Sequence[Sequence[Operation]], communication_share: float = 0.0, *, overlaps: bool = False
) -> Timeline | None:
    """Lay out every device's operations on one time axis; None if there are too many operations.

    `communication_share` scales the transfers: the device that sends the most bytes would send for that share
    of its time and compute in the remaining time. The share is ignored for a pipeline. If `overlaps` is
    true, the pipeline is not flushed between steps: inputs were sent in an earlier step, so no device waits
    for input.
    """
    if sum(map(len, devices)) > MAX_OPERATIONS:
        return None
    is_pipeline = any(operation.microbatch is not None for operations in devices for operation in operations)
    # A plan knows bytes, not times, so the caller chooses the share: without one, sixty sends of a ring would
    # be one pixel wide. In a pipeline the gaps have to be its bubble.
    return _TimelineBuilder(devices, 0.0 if is_pipeline else communication_share, overlaps=overlaps).build()


class _TimelineBuilder:
    """Timeline builder that repeatedly advances each device until the device would have to wait."""

    def __init__(
        self, devices: Sequence[Sequence[Operation]], moving_share: float, *, overlaps: bool
    ) -> None:
        self._overlaps = overlaps
        self._parts = [deque(operations) for operations in devices]
        self._now = [0.0] * len(devices)
        self._intervals: list[list[Interval]] = [[] for _ in devices]
        self._lines: list[Transfer] = []
        self._sent: Mapping[tuple[int, int], deque[float]] = defaultdict(deque)
        flops = [operation.flops for operations in devices for operation in operations if operation.flops]
        self._min_duration = sum(flops) / max(1, len(flops)) / 50 if flops else 1.0
        """Minimum duration of a compute operation, so that almost empty operations remain visible."""
        sent = max(
            (sum(p.num_bytes for p in operations if p.name != RECEIVE) for operations in devices), default=0
        )
        computed = max(
            (sum(operation.flops for operation in operations) for operations in devices), default=0
        )
        # The busiest sender sends for `moving_share` of its time and computes for the rest.
        self._time_per_byte = moving_share / (1 - moving_share) * computed / sent if sent else 0.0
        self._group_cache: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._link_free_at = [0.0] * len(devices)
        """Time at which each device's link is free again: a link sends one transfer after another while the
        device computes."""

    def build(self) -> Timeline:
        waits = False
        while not waits:
            # A list, not a generator: `any` would stop at the first device that makes progress.
            came = [self._advance(device) for device in range(len(self._parts))]
            waits = not any(came)
        length = max(self._now, default=0.0) or 1.0
        intervals = [
            [Interval(interval.operation, interval.start / length, interval.end / length) for interval in row]
            for row in self._intervals
        ]
        lines = [
            msgspec.structs.replace(line, at=line.at / length, left=line.left / length)
            for line in self._lines
        ]
        return Timeline(intervals, sorted(lines, key=lambda line: line.at), not any(self._parts))

    def _advance(self, device: int) -> bool:
        """Advance a device; return whether it made progress."""
        operations, came = self._parts[device], False
        while operations and self._place_operation(device, operations[0]):
            came = True
        return came

    def _place_operation(self, device: int, operation: Operation) -> bool:
        if operation.peers is None:
            start = self._now[device]
            self._now[device] = start + max(operation.flops, self._min_duration)
            self._intervals[device].append(Interval(operation, start, self._now[device]))
        elif operation.name == SEND:
            left = max(self._now[device], self._link_free_at[device])
            self._link_free_at[device] = left + operation.num_bytes * self._time_per_byte
            self._sent[device, operation.peers[0]].append(left)
            if self._overlaps:
                at = self._link_free_at[device]
                self._lines.append(
                    Transfer(SEND, at, operation.num_bytes, device, operation.peers[0], left=left)
                )
        elif operation.name == RECEIVE and not self._overlaps:
            sent = self._sent[operation.peers[0], device]
            if not sent:
                return False
            left = sent.popleft()
            at = self._now[device] = max(self._now[device], left + operation.num_bytes * self._time_per_byte)
            self._lines.append(Transfer(SEND, at, operation.num_bytes, operation.peers[0], device, left=left))
        elif operation.name != RECEIVE:
            return self._place_collective(operation)
        self._parts[device].popleft()
        return True

    def _place_collective(self, operation: Operation) -> bool:
        """Place a collective once its whole group has reached it; return whether it was placed."""
        group = self._group_of(operation)
        for device in group:
            next_operation = self._parts[device][0] if self._parts[device] else None
            if (
                next_operation is None
                or next_operation.name != operation.name
                or self._group_of(next_operation) != group
            ):
                return False
        left = max(max(self._now[device], self._link_free_at[device]) for device in group)
        at = left + operation.num_bytes * self._time_per_byte
        for device in group:
            self._now[device] = at
            self._parts[device].popleft()
        self._lines.append(Transfer(operation.name, at, operation.num_bytes, group=group, left=left))
        return True

    def _group_of(self, operation: Operation) -> tuple[int, ...]:
        peers = tuple(operation.peers or ())
        if peers not in self._group_cache:
            self._group_cache[peers] = tuple(sorted(set(peers)))
        return self._group_cache[peers]


def merge_operations(operations: Iterable[Operation]) -> list[Operation]:
    """Merge consecutive compute operations of the same name."""
    merged: list[Operation] = []
    for operation in operations:
        if (
            merged
            and operation.peers is None
            and operation == msgspec.structs.replace(merged[-1], flops=operation.flops)
        ):
            merged[-1] = msgspec.structs.replace(operation, flops=merged[-1].flops + operation.flops)
        else:
            merged.append(operation)
    return merged
