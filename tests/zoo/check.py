"""Which runs are due, and running them: all, some by name, or a share drawn by a seed within a time.

check(runs, cache)                     what is not known yet, then what an older engine said
share(seed=20261128, limit_s=60)       some of all, drawn anew; for a test that runs a part each day
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

from tests.zoo.cache import ResultCache, ZooResult
from tests.zoo.registry import Entry, all_entries
from tests.zoo.runner import ZooRunner
from tests.zoo.strategies import SETTINGS, Setting

Run = tuple[Entry, Setting]
KINDS = ("models", "losses", "optimizers", "data")


@dataclass(frozen=True)
class RunFilter:
    """Parts of names: of settings, and of entries by their kind. Nothing said: all."""

    settings: Sequence[str] = ()
    names: tuple[tuple[str, Sequence[str]], ...] = ()

    def list_runs(self) -> list[Run]:
        """All entries under one setting, then under the next: `single` is the first."""
        kinds = dict(self.names)
        chosen = [
            entry
            for entry in all_entries().values()
            if not kinds or any(pattern in entry.name for pattern in kinds.get(entry.kind, ()))
        ]
        settings = [
            setting
            for setting in SETTINGS.values()
            if not self.settings or any(pattern in setting.name for pattern in self.settings)
        ]
        settings.sort(key=lambda setting: setting.order)
        return [(entry, setting) for setting in settings for entry in chosen]

    @property
    def is_all(self) -> bool:
        return not (self.settings or self.names)


def due_runs(runs: Iterable[Run], cache: ResultCache, *, again: Sequence[str] = ()) -> list[Run]:
    """Runs never done, then those of an older engine, the bad ones of them first. `again` are outcomes that
    are run again in any case, and nothing else."""
    results = [(run, cache.get(*run)) for run in runs]
    if again:
        return [run for run, result in results if result is not None and result.outcome.kind in again]
    never = [run for run, result in results if result is None]
    older = [(run, result) for run, result in results if result is not None and not result.is_current]
    bad = [run for run, result in older if result.is_bad]
    return never + bad + [run for run, result in older if not result.is_bad]


def run_all(
    runs: Sequence[Run],
    cache: ResultCache | None = None,
    *,
    limit_s: float | None = None,
    on_result: Callable[[ZooResult], None] = lambda result: None,
) -> list[ZooResult]:
    """Do these runs in this order, as many as there is time for."""
    done: list[ZooResult] = []
    end_s = None if limit_s is None else time.monotonic() + limit_s
    with closing(ZooRunner()) as runner:
        for entry, setting in runs:
            started = time.monotonic()
            if end_s is not None and started > end_s:
                break
            outcome = runner.run(entry, setting)
            seconds = time.monotonic() - started
            if cache is None:
                done.append(ZooResult(entry.key, setting.name, outcome, is_current=True, seconds=seconds))
            else:
                done.append(cache.put(entry, setting, outcome, seconds))
            on_result(done[-1])
    return done


def run_sample(seed: int, limit_s: float, wanted: RunFilter = RunFilter()) -> list[ZooResult]:
    """Runs drawn by a seed from all kinds alike, as many as there is time for."""
    return run_all(shuffle_runs(seed, wanted.list_runs()), limit_s=limit_s)


def shuffle_runs(seed: int, runs: Sequence[Run]) -> list[Run]:
    """In an order of the seed's own, kinds taking turns."""
    generator = random.Random(seed)
    by_kind = {kind: [run for run in runs if run[0].kind == kind] for kind in KINDS}
    for group in by_kind.values():
        generator.shuffle(group)
    longest = max(map(len, by_kind.values()), default=0)
    return [group[index] for index in range(longest) for group in by_kind.values() if index < len(group)]
