"""What one rank's devices do and send in the step that counts, noted as it goes by on shapes.

    marks of phases (profiling/spans.py)  +  operations with their FLOPs  +  collectives, sends and copies
      -> parts of the rank, device by device in order (run/movement.py)

All three carry the moment at which they came: an operation belongs to the phase of its device in which it
came, and what is sent cuts a phase in two. Read work.py before.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

from rankdeck.parallel.collectives.counted import ring_bytes
from rankdeck.planner.work import WorkCounter
from rankdeck.profiling.spans import PhaseSpan
from rankdeck.run.movement import RECEIVE, SEND, Part, merged
from rankdeck.torch_compat.collectives import Collective, collective_of


class StepRecorder:
    """Of one rank. `places` are its devices' in the run."""

    def __init__(self, work: WorkCounter, places: Sequence[int]) -> None:
        self._work = work
        self._places = places
        self._computed: list[list[tuple[float, int]]] = [[] for _ in places]
        self._moved: list[list[tuple[float, Part]]] = [[] for _ in places]

    def add(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None, out: Any) -> None:
        """An operation that was computed on shapes."""
        sent = collective_of(func, args)
        if sent is not None:
            self.sent(sent)
        done = self._work.add(func, args, kwargs, out)
        if done is not None:
            device, flops = done
            self._computed[device].append((time.perf_counter(), flops))

    def sent(self, sent: Collective) -> None:
        """A send, or a collective, of which what a ring sends is counted."""
        if sent.peer is not None:
            self._note(0, sent.kind, sent.num_bytes, [sent.peer])
        elif len(sent.group) > 1:
            num_bytes = ring_bytes(sent.kind, len(sent.group), sent.num_bytes)
            self._note(0, sent.kind, num_bytes, list(sent.group))

    def crossed(self, source: int, target: int, num_bytes: int) -> None:
        """A copy between two of the rank's devices."""
        self._note(source, SEND, num_bytes, [self._places[target]])
        self._note(target, RECEIVE, num_bytes, [self._places[source]])

    def _note(self, device: int, name: str, num_bytes: int, peers: list[int]) -> None:
        part = Part(name, self._places[device], num_bytes=num_bytes, peers=peers)
        self._moved[device].append((time.perf_counter(), part))

    def parts(self, marks: Sequence[PhaseSpan]) -> list[Part]:
        """Everything in order, by device."""
        found: list[Part] = []
        for device in range(len(self._places)):
            found += merged(self._parts_of(device, [mark for mark in marks if mark.device == device]))
        return found

    def _parts_of(self, device: int, marks: list[PhaseSpan]) -> list[Part]:
        """Moments in order: a phase begins or ends, or something moves. Between two of them is a part."""
        moments: list[tuple[float, PhaseSpan | Part, bool]] = [
            *((mark.start, mark, True) for mark in marks),
            *((mark.end, mark, False) for mark in marks),
            *((at, part, True) for at, part in self._moved[device]),
        ]
        moments.sort(key=lambda moment: moment[0])
        times = [at for at, _ in self._computed[device]]
        sums = [0]
        for _, flops in self._computed[device]:
            sums.append(sums[-1] + flops)
        parts: list[Part] = []
        inside: list[PhaseSpan] = []
        since = 0.0
        for at, what, begins in moments:
            if inside:
                mark = inside[-1]
                flops = sums[bisect_right(times, at)] - sums[bisect_right(times, since)]
                place = self._places[device]
                parts.append(Part(mark.name, place, flops, stage=mark.stage, microbatch=mark.microbatch))
            since = at
            if isinstance(what, Part):
                parts.append(what)
            elif begins:
                inside.append(what)
            else:
                inside.remove(what)
        return parts
