"""A run of a person's own script as the supervisor and the observer would write it, for readers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rankdeck import events, run_dir
from rankdeck.config.script import ScriptConfig, ScriptTable
from rankdeck.run_dir import RunDir
from tests.helpers.written_run import device_infos


def observed_run(
    runs: Path,
    script: Path,
    *,
    ranks: int = 1,
    num_steps: int = 12,
    rates: Sequence[float | None] = (),
    losses: Sequence[float | None] = (),
    devices: Sequence[events.DeviceInfo] | None = None,
    settings: dict[str, Any] | None = None,
    selection: str | None = None,
    more: Sequence[events.Event] = (),
    **observed: Any,
) -> RunDir:
    """What `ranks` ranks did alike. `settings` goes into [script], `selection` is what
    --devices named, `observed` into events.Observed."""
    table = ScriptTable(
        run=script.name, folder=str(script.parent), python=sys.executable, ranks=ranks, **(settings or {})
    )
    hidden = run_dir.create_run_dir(
        runs, ScriptConfig(name=script.name, script=table, devices=selection), environment={}
    )
    run = RunDir(run_dir.final_path(hidden))
    hidden.path.rename(run.path)
    infos = list(devices or device_infos(ranks))
    with_supervisor = run.writer("supervisor")
    with_supervisor.write(
        events.RunStarted(
            run=run.name, attempt=0, world_size=ranks, devices=infos, started=0.0, source=events.SCRIPT
        )
    )
    with_supervisor.close()
    for rank in range(ranks if num_steps else 0):
        writer = run.writer(f"rank-{rank}")
        writer.write(events.RankStarted(rank=rank, pid=1, devices=[rank], world_size=ranks))
        writer.write(events.Observed(rank=rank, script=str(script), **observed))
        for event in more:
            writer.write(event)
        writer.write(
            events.Steps(
                rank=rank,
                first=1,
                loss_sum=list(losses) or None,
                count=[1.0] * num_steps if losses else None,
                lr=list(rates) or [None] * num_steps,
                samples=[None] * num_steps,
                step_s=[0.01] * num_steps,
                ended=[float(step) for step in range(num_steps)],
                backwards=[observed.get("accumulate") or 1] * num_steps,
            )
        )
        writer.close()
    return run
