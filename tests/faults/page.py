"""docs/reliability.md, written from the record alone."""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tests.faults.healthy import Healthy
from tests.faults.kinds import KINDS
from tests.faults.storms import STRATEGIES, Storm
from tests.faults.trial import LEFT_S, Record

_HEAD = """\
# What breaks, and what is told of it

`make faults` makes every kind of fault below for real in small runs of every strategy and of people's own
scripts. The class of job, the place (a forward, a backward, the loss, the optimizer, a sample, an evaluation,
a save) and the step are drawn from a seed. A trial is right when

- the run ended as it had to, with the exit code that it had to have;
- one cause was told, of the rank where the fault was made, and the words name what was made; of a fault that
  ends nothing nothing was told, or only the warning that belongs to it;
- no process that was started for the run lived {left:.0f} s after the fault; after a hang, {left:.0f} s after
  the run had ended or been stopped for it;
- every event of the run can be read, and none is missing.

`make storms` kills runs of every strategy with SIGKILL two to five times, and goes on with them until they
are done: a rank, two, all of them, the supervisor, the guard, or two of these at once; in a step, in the
middle of a save, and while the run starts again. A storm is right when every step was told once, and losses
and weights are those of a run that nobody disturbed, to the bit.

Of healthy runs, alone and beside twice as many busy loops as there are cores, suspended with everything that
was started for them, with a tracer attached to a rank, in Python's debugger, with a step or a save that takes
seconds, nothing may be told at all.

Both go on where they were when they are cut off, and `make faults ARGS="--again"` tries again what was wrong.
What was tried again counts as it ended then. This page is written by them.
"""


def written(trials: Sequence[Record], healthy: Sequence[Healthy], storms: Sequence[Storm], seed: int) -> str:
    """The page."""
    right = sum(not one.wrong for one in trials)
    share = f" ({right / len(trials):.1%})" if trials else ""
    of_kind = Counter(one.kind for one in trials)
    false = sum(bool(one.wrong) for one in healthy)
    lost = sum(bool(one.wrong) for one in storms)
    lines = [
        _HEAD.format(left=LEFT_S),
        f"{datetime.date.today().isoformat()}, seed {seed}:",
        "",
        f"- {len(trials)} trials of {len(of_kind)} kinds: {right} right{share}",
        f"- {len(healthy)} healthy runs: {false} with a false alarm",
        f"- {len(storms)} kill storms, {sum(len(one.kills) for one in storms)} kills: {lost} lost something",
        "",
        "## Faults",
        "",
        "| fault | trials | right | told as | gone after, at most |",
        "|---|---:|---:|---|---:|",
        *_kinds(trials),
        "",
        "## Healthy runs",
        "",
        "| how | runs | false alarms |",
        "|---|---:|---:|",
        *_counted((one.how, bool(one.wrong)) for one in healthy),
        "",
        "## Kill storms",
        "",
        "| strategy | storms | kills | lost something |",
        "|---|---:|---:|---:|",
        *_storms(storms),
        *_wrong([*trials, *healthy, *storms]),
    ]
    return "\n".join(lines) + "\n"


def _kinds(trials: Iterable[Record]) -> list[str]:
    by_kind: dict[str, list[Record]] = defaultdict(list)
    for one in trials:
        by_kind[one.kind].append(one)
    rows = []
    for name, kind in KINDS.items():
        tried = by_kind.get(name, [])
        if not tried:
            continue
        told = Counter(one.code for one in tried if one.code and not one.wrong)
        codes = ", ".join(f"`{code}`" for code, _ in told.most_common(3)) or {
            "reason": "the run's last word"
        }.get(kind.told.severity, "nothing")
        gone = [one.gone_s for one in tried if one.gone_s is not None]
        most = f"{max(gone):.1f} s" if gone and not kind.hangs else ""
        right = sum(not one.wrong for one in tried)
        rows.append(f"| {name} | {len(tried)} | {right} | {codes} | {most} |")
    return rows


def _counted(told: Iterable[tuple[str, bool]]) -> list[str]:
    every, false = Counter[str](), Counter[str]()
    for how, is_wrong in told:
        every[how] += 1
        false[how] += is_wrong
    return [f"| {how} | {count} | {false[how]} |" for how, count in sorted(every.items())]


def _storms(storms: Sequence[Storm]) -> list[str]:
    rows = []
    for name in STRATEGIES:
        of_it = [one for one in storms if one.strategy == name]
        if of_it:
            kills, lost = sum(len(one.kills) for one in of_it), sum(bool(one.wrong) for one in of_it)
            rows.append(f"| {name} | {len(of_it)} | {kills} | {lost} |")
    return rows


def _wrong(records: Iterable[Record | Healthy | Storm]) -> list[str]:
    lines = []
    for one in records:
        if one.wrong:
            what = {Record: "kind", Healthy: "how", Storm: "strategy"}[type(one)]
            job = f", {one.job}" if not isinstance(one, Storm) else ""
            first = one.wrong[0].splitlines()[0][:200]
            lines.append(f"- {getattr(one, what)}{job}, seed {one.seed}: {first}")
    return ["", "## What was wrong", "", *lines] if lines else []
