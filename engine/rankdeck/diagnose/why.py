"""Why a run ran out of memory, in words and rows: what the terminal, the page and the app all show; and of
any other run what is to be said of it, the cause first.

The facts are those of run/out_of_memory.py, the ways out those of run/ways_out.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import listed, marked, phrase
from rankdeck.base.units import format_bytes
from rankdeck.checkpoint_files import list_checkpoints
from rankdeck.config.cures import options_of
from rankdeck.diagnose.findings import SeenRun, findings
from rankdeck.diagnose.own_code import CodeLine, own_lines
from rankdeck.run import out_of_memory
from rankdeck.run.out_of_memory import RanOut
from rankdeck.run.plan_lines import PlanLine
from rankdeck.run.ways_out import ways_out
from rankdeck.rundir import RunDir

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.run.fold import Fold

MOST_MODULES = 24
NO_PLAN = marked("Nothing was planned: a person's own script has no configuration that could be changed.")
NOTHING_LESS = marked(
    "Nothing that was planned needs less: use more devices, larger ones, or a smaller model."
)

_PLACES = {"error": 0, "warning": 1}
"""By severity, where a problem stands; all else is behind."""
_KIND_WORDS = {"gathered": marked("gathered")}
"""Of kinds that the window names otherwise elsewhere."""


class HeldPart(NamedTuple):
    """A kind or a module, its bytes, and its share of the largest one."""

    name: str
    num_bytes: int
    share: float
    more: str = ""

    @property
    def size(self) -> str:
        return format_bytes(self.num_bytes)


class Way(NamedTuple):
    """A way out; `command` does it."""

    words: str
    headroom: str
    verdict: str
    command: list[str]
    cure: Mapping[str, Any]


@dataclass(frozen=True)
class Why:
    """`code` is the person's own line, `line` the same in words; `ways` are empty until they are planned."""

    ran: RanOut
    headline: str
    tipped: str
    device: str
    moment: str
    source: str
    code: CodeLine | None
    line: str
    kinds: Sequence[HeldPart]
    modules: Sequence[HeldPart]
    ways: Sequence[Way] = ()
    no_ways: str = NO_PLAN

    def with_ways(self, lines: Iterable[PlanLine], run: RunDir | None = None) -> Why:
        """With what the planner says would need less; of `run` with the commands that do it."""
        lines = list(lines)
        found = [
            Way(
                way.words,
                way.headroom,
                way.verdict,
                [] if run is None else command_of(run, way.cure),
                way.cure,
            )
            for way in ways_out(lines)
        ]
        return replace(self, ways=found, no_ways=NOTHING_LESS if lines else NO_PLAN)


def why_of(run: RunDir, fold: Fold) -> Why | None:
    """None for a run that never ran out of memory."""
    config = _config_of(run)
    return told(fold, None if config is None else config.capacity_bytes)


def problems_and_findings(run: RunDir, fold: Fold) -> list[Problem]:
    """What a run says of itself and what its figures say, errors first. `fold` has curves."""
    from rankdeck.run.summarising import problems_of

    outcome = run.outcome()
    found = problems_of(run, fold, outcome) + findings_of(run, fold, is_over=outcome != "running")
    return sorted(found, key=lambda problem: _PLACES.get(problem.severity, 2))


def findings_of(run: RunDir, fold: Fold, *, is_over: bool) -> list[Problem]:
    """What a run's figures say. `fold` has curves."""
    return findings(SeenRun(fold, _config_of(run), is_over=is_over))


def _config_of(run: RunDir) -> RunConfig | None:
    """None of the run of a script, or of one that cannot be read."""
    try:
        return run.config()
    except ConfigError:
        return None


def told(fold: Fold, capacity_bytes: int | None) -> Why | None:
    """As `why_of`, for whoever knows what a rehearsal pretends."""
    ran = out_of_memory.ran_out(fold, fold.problems, capacity_bytes)
    if ran is None:
        return None
    code = _own_line(ran)
    where = "" if code is None else f"{code.file}, line {code.line}"
    return Why(
        ran=ran,
        headline=out_of_memory.headline(ran),
        tipped=out_of_memory.tipped(ran),
        device=ran.label,
        moment=out_of_memory.moment(ran),
        source=ran.source or "",
        code=code,
        line=where if code is None or not code.text else f"{where}: {code.text}",
        kinds=[part._replace(more="") for part in _parts({kind: {kind: n} for kind, n in ran.held.items()})],
        modules=_parts(ran.modules)[:MOST_MODULES],
    )


def _own_line(ran: RanOut) -> CodeLine | None:
    """Where the person's own code asked for it."""
    problem = ran.problem
    lines = own_lines(problem.last_lines)
    if lines:
        return lines[0]
    if problem.path and problem.line is not None and Path(problem.path).is_absolute():
        return CodeLine(problem.path, problem.line)
    return None


def _parts(sizes: Mapping[str, Mapping[str, int]]) -> list[HeldPart]:
    sums = {name: sum(kinds.values()) for name, kinds in sizes.items()}
    most = max(sums.values(), default=0)
    return [
        HeldPart(out_of_memory.module_name(name), total, total / most, _kinds(sizes[name]))
        for name, total in sorted(sums.items(), key=lambda item: -item[1])
        if total
    ]


def _kinds(kinds: Mapping[str, int]) -> str:
    """'parameters 8.1 KiB, optimizer 16.3 KiB'"""
    known = {kind: format_bytes(size) for kind, size in kinds.items() if size}
    return listed(
        [
            phrase("{kind} {size}", kind=phrase(_KIND_WORDS.get(kind, kind)), size=size)
            for kind, size in known.items()
        ]
    )


def command_of(run: RunDir, cure: Mapping[str, Any]) -> list[str]:
    """What does it: go on from the newest checkpoint, or where there is none train anew."""
    if list_checkpoints(run.checkpoints_folder):
        return ["rankdeck", "resume", run.name, *options_of(cure)]
    return ["rankdeck", "train", str(run.config_to_go_on_with), *options_of(cure)]
