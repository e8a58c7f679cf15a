"""Counts what should not grow with every step: hooks, parameters of the optimizer, threads and processes.

The counts are taken after a few steps, at growing intervals. A count is reported if it rises by at least one
element every two steps in three intervals in a row. Read memory_growth.py next, which examines bytes.
"""

from __future__ import annotations

import sys
import threading

from .models import list_parameters

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "growth"
_FIRST_STEPS, _INTERVAL = 128, 32
_NUM_INTERVALS = 3
_MIN_SHARE = 0.5
"""Minimum number of new elements per step."""
_MODULE_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
)
_TENSOR_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")
_OPTIMIZER_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class GrowthCounter:
    """Counts hooks, threads and other objects after some steps, and reports a count that rises steadily."""

    def __init__(self, session: RankSession) -> None:
        self._session = session
        self.forget()

    def forget(self) -> None:
        self._counts: list[tuple[int, dict[str, int]]] = []
        """The last few counts, as (step, counts by kind)."""

    def on_leader_chosen(self, _: Any) -> None:
        """Discard the counts, because another optimizer leads from now on."""
        self.forget()

    def on_step(self, optimizer: Any) -> None:
        """Take counts after every 32nd step and, later, only after steps whose number is a power of two."""
        step = self._session.step
        if step % _INTERVAL or (step > _FIRST_STEPS and step & (step - 1)):
            return
        self._counts.append((step, self._count(optimizer)))
        del self._counts[: -_NUM_INTERVALS - 1]
        if len(self._counts) <= _NUM_INTERVALS:
            return
        for kind, last in self._counts[-1][1].items():
            intervals = zip(self._counts, self._counts[1:])
            if all(
                after[kind] - before[kind] >= _MIN_SHARE * (later - earlier)
                for (earlier, before), (later, after) in intervals
            ):
                self._report(optimizer, kind, last)

    def _count(self, optimizer: Any) -> dict[str, int]:
        hooks = sum(len(table) for table in self._hook_tables(optimizer))
        state = getattr(optimizer, "state", None)
        # Not multiprocessing.active_children(), which also joins children that have ended.
        processes = getattr(sys.modules.get("multiprocessing.process"), "_children", ())
        return {
            "hooks": hooks,
            "parameters": len(list_parameters(optimizer)),
            "states": len(state) if isinstance(state, dict) else 0,
            "threads": threading.active_count(),
            "processes": len(processes),
        }

    def _hook_tables(self, optimizer: Any) -> Any:
        """Yield the tables of hooks of the trained modules, of their parameters and of the optimizer."""
        model = next((m for m in (ref() for ref in self._session.models) if m is not None), None)
        owners: list[tuple[Any, tuple[str, ...]]] = [(optimizer, _OPTIMIZER_HOOKS)]
        owners += [(parameter, _TENSOR_HOOKS) for parameter in list_parameters(optimizer)]
        if model is not None:
            owners += [(module, _MODULE_HOOKS) for module in model.modules()]
        for owner, names in owners:
            for name in names:
                table = getattr(owner, name, None)
                if table:
                    yield table

    def _report(self, optimizer: Any, kind: str, count: int) -> None:
        first_step, first = self._counts[0]
        step = self._counts[-1][0]
        name = line = ""
        if kind == "hooks":
            # The table with most hooks is the one that grows.
            table = max(self._hook_tables(optimizer), key=len)
            hook = next(reversed(list(table.values())))
            name = getattr(hook, "__qualname__", type(hook).__name__)
            code = getattr(hook, "__code__", None)
            line = "%s:%d" % (code.co_filename, code.co_firstlineno) if code is not None else ""
        self._session.report_anomaly(
            "growing-" + kind,
            names=[name],
            line=line,
            step=first_step,
            before=first[kind],
            after=count,
            steps=step - first_step,
        )


def install(torch: Any, session: RankSession) -> None:
    """Count hooks, threads and other objects after steps of the leading optimizer."""
    counter = GrowthCounter(session)
    session.on_some_step.add(PART, counter.on_step)
    session.on_leader_chosen.add(PART, counter.on_leader_chosen)
    session.on_fork.add(PART, counter.forget)
