"""What torch's flight recorder holds of every rank -> who has not come to which collective, and whether all
have called the same ones in the same order.

Each group numbers its collectives, and a rank enters a number only once it has come to that call. Where the
same number is another collective elsewhere, everybody waits for ever. Messages between two ranks have no such
numbers and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankdeck.base.parsing import json_of
from rankdeck.base.phrases import Phrase, marked, phrase

_SAME_SHAPE = ("all_reduce", "broadcast", "reduce")
"""What every rank passes tensors of one shape to."""
_LONGEST = 40
MICROBATCH = marked("{phase} of microbatch {number}")


@dataclass(frozen=True)
class CollectiveCall:
    """A collective that a rank has come to: the `number`th of its group."""

    group: str
    number: int
    kind: str
    shape: str = ""
    is_over: bool = False

    def words(self) -> Phrase:
        if self.shape:
            return phrase(
                "{kind} number {number} ({shape})", kind=self.kind, number=self.number, shape=self.shape
            )
        return phrase("{kind} number {number}", kind=self.kind, number=self.number)

    def fits(self, other: CollectiveCall) -> bool:
        """Whether the two can be one collective."""
        same_shape = self.shape == other.shape or self.kind not in _SAME_SHAPE
        return self.kind == other.kind and same_shape


def calls_of(text: str | bytes) -> list[CollectiveCall]:
    """The collectives in a recorder's JSON, the oldest first; empty for what is none."""
    try:
        entries = json_of(text)["entries"]
        return [_call(entry) for entry in entries if not entry.get("is_p2p")]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return []


def work_of(text: str | bytes) -> Phrase | None:
    """What a rank of a pipeline has begun last, of the same JSON: 'forward of microbatch 3'."""
    try:
        name, number = json_of(text)["microbatch"]
        return phrase(MICROBATCH, phase=str(name)[:_LONGEST], number=int(number))
    except (ValueError, TypeError, KeyError):
        return None


def _call(entry: Mapping[str, Any]) -> CollectiveCall:
    sizes, dtypes = entry.get("input_sizes") or [], entry.get("input_dtypes") or []
    told = [f"{'x'.join(map(str, size)) or 1} {dtype}" for size, dtype in zip(sizes, dtypes, strict=False)]
    return CollectiveCall(
        group=str(entry["process_group"][0]),
        number=int(entry["collective_seq_id"]),
        kind=str(entry["profiling_name"]).rpartition(":")[2].lstrip("_"),
        shape=", ".join(told),
        is_over=bool(entry.get("retired")),
    )


def current(calls: Sequence[CollectiveCall]) -> CollectiveCall | None:
    """The one that a rank is in."""
    return next((call for call in reversed(calls) if not call.is_over), None)


def differing(calls: Mapping[int, Sequence[CollectiveCall]]) -> dict[int, CollectiveCall]:
    """By rank what it has called under the first number that was not the same everywhere; empty where all
    that is known fits together."""
    for ranks in _by_number(calls).values():
        first = next(iter(ranks.values()))
        if not all(first.fits(call) for call in ranks.values()):
            return ranks
    return {}


def missing(calls: Mapping[int, Sequence[CollectiveCall]]) -> tuple[list[int], CollectiveCall] | None:
    """The ranks that have not come to a collective where others of their group are, and that collective; None
    where nobody is known to be missing."""
    members = _members(calls)
    for (group, _), ranks in _by_number(calls).items():
        absent = sorted(members[group] - ranks.keys())
        waited_for = next((call for call in ranks.values() if not call.is_over), None)
        if absent and waited_for is not None:
            return absent, waited_for
    return None


def unfinished(
    calls: Mapping[int, Sequence[CollectiveCall]],
) -> tuple[CollectiveCall, list[int]] | None:
    """The first collective that every rank of its group has come to and that is not over in all of them, with
    its ranks; None where there is none."""
    members = _members(calls)
    for (group, _), ranks in _by_number(calls).items():
        call = next((call for call in ranks.values() if not call.is_over), None)
        if call is not None and len(ranks) > 1 and members[group] == ranks.keys():
            return call, sorted(ranks)
    return None


def _members(calls: Mapping[int, Sequence[CollectiveCall]]) -> dict[str, set[int]]:
    """The ranks of each group, as far as they have called anything in it."""
    members: dict[str, set[int]] = {}
    for rank, made in calls.items():
        for call in made:
            members.setdefault(call.group, set()).add(rank)
    return members


def _by_number(
    calls: Mapping[int, Sequence[CollectiveCall]],
) -> dict[tuple[str, int], dict[int, CollectiveCall]]:
    """Of each group and number who has come to it, without numbers that some recorder no longer holds."""
    oldest: dict[str, int] = {}
    for made in calls.values():
        for group in {call.group for call in made}:
            first = min(call.number for call in made if call.group == group)
            oldest[group] = max(oldest.get(group, 0), first)
    found: dict[tuple[str, int], dict[int, CollectiveCall]] = {}
    for rank, made in calls.items():
        for call in made:
            if call.number >= oldest[call.group]:
                found.setdefault((call.group, call.number), {})[rank] = call
    return dict(sorted(found.items(), key=lambda item: item[0][1]))
