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
# What happens when something breaks?

`make faults` injects every kind of fault below into small, real runs of every strategy and of user
scripts. A seed chooses the job (a strategy or a user script), the place (forward, backward, loss,
optimizer, a sample, an evaluation, a save) and the step. A trial passes if

- the run ends with the expected outcome and exit code;
- the run reports one cause, with the rank where the fault was injected and a message that names the fault. If
  the run survives the fault, it reports nothing, or only the warning for this fault;
- no process of the run is left {left:.0f} s after the fault. After a hang, these seconds start when the run
  ends or the trial stops it, and the table below has no time;
- every event of the run can be read, and none is missing.

`make storms` kills runs of every strategy with SIGKILL two to five times, and resumes them until they
complete. It kills one rank, two ranks, all ranks, the supervisor, the guard, or two of these at once. It
does so in a step, in the middle of a save, and while the run starts again. Such a storm of kills passes if
every step is reported once, and losses and weights equal those of an undisturbed run bit for bit.

Healthy runs must report nothing. Some run on an otherwise idle machine, some beside twice as many busy
loops as there are cores, some with a step or a save that takes seconds. Others are suspended with all
their processes, have a tracer attached to a rank, or stop in Python's debugger.

Both commands continue where they were interrupted. `make faults ARGS="--again"` repeats the failed trials,
and the last result of a trial counts. These commands generate this page.
"""


def written(trials: Sequence[Record], healthy: Sequence[Healthy], storms: Sequence[Storm], seed: int) -> str:
    """The page."""
    right = sum(not record.wrong for record in trials)
    share = f" ({right / len(trials):.1%})" if trials else ""
    of_kind = Counter(record.kind for record in trials)
    false = sum(bool(record.wrong) for record in healthy)
    lost = sum(bool(record.wrong) for record in storms)
    lines = [
        _HEAD.format(left=LEFT_S),
        f"{datetime.date.today().isoformat()}, seed {seed}:",
        "",
        f"- {len(trials)} trials of {len(of_kind)} kinds: {right} passed{share}",
        f"- {len(healthy)} healthy runs: {false} with a false alarm",
        f"- {len(storms)} kill storms, {sum(len(record.kills) for record in storms)} kills: {lost} failed",
        "",
        "## Faults",
        "",
        "| fault | trials | passed | reported as | processes gone after (max) |",
        "|---|---:|---:|---|---:|",
        *_kinds(trials),
        "",
        "## Healthy runs",
        "",
        "| condition | runs | false alarms |",
        "|---|---:|---:|",
        *_counted((record.how, bool(record.wrong)) for record in healthy),
        "",
        "## Kill storms",
        "",
        "| strategy | storms | kills | failed |",
        "|---|---:|---:|---:|",
        *_storms(storms),
        *_wrong([*trials, *healthy, *storms]),
    ]
    return "\n".join(lines) + "\n"


def _kinds(trials: Iterable[Record]) -> list[str]:
    by_kind: dict[str, list[Record]] = defaultdict(list)
    for trial in trials:
        by_kind[trial.kind].append(trial)
    rows = []
    for name, kind in KINDS.items():
        tried = by_kind.get(name, [])
        if not tried:
            continue
        code_counts = Counter(trial.code for trial in tried if trial.code and not trial.wrong)
        codes = ", ".join(f"`{code}`" for code, _ in code_counts.most_common(3)) or {
            "reason": "only the reason in `end.json`"
        }.get(kind.expected.severity, "nothing")
        exit_times_s = [trial.gone_s for trial in tried if trial.gone_s is not None]
        slowest = f"{max(exit_times_s):.1f} s" if exit_times_s and not kind.hangs else ""
        right = sum(not trial.wrong for trial in tried)
        rows.append(f"| {name} | {len(tried)} | {right} | {codes} | {slowest} |")
    return rows


def _counted(outcomes: Iterable[tuple[str, bool]]) -> list[str]:
    every, false = Counter[str](), Counter[str]()
    for how, is_wrong in outcomes:
        every[how] += 1
        false[how] += is_wrong
    return [f"| {how} | {count} | {false[how]} |" for how, count in sorted(every.items())]


def _storms(storms: Sequence[Storm]) -> list[str]:
    rows = []
    for name in STRATEGIES:
        of_it = [storm for storm in storms if storm.strategy == name]
        if of_it:
            kills, lost = sum(len(storm.kills) for storm in of_it), sum(bool(storm.wrong) for storm in of_it)
            rows.append(f"| {name} | {len(of_it)} | {kills} | {lost} |")
    return rows


def _wrong(records: Iterable[Record | Healthy | Storm]) -> list[str]:
    lines = []
    for record in records:
        if record.wrong:
            what = {Record: "kind", Healthy: "how", Storm: "strategy"}[type(record)]
            job = f", {record.job}" if not isinstance(record, Storm) else ""
            first = record.wrong[0].splitlines()[0][:200]
            lines.append(f"- {getattr(record, what)}{job}, seed {record.seed}: {first}")
    return ["", "## Failed", "", *lines] if lines else []
