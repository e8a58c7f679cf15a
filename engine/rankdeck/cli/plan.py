"""`rankdeck plan`: what every strategy would need of every device, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from rankdeck.cli.options import AsJson, ConfigName, load_config

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.plan_lines import PlanLine
    from rankdeck.planner.targets import Target


def plan(
    config: ConfigName,
    strategy: Annotated[
        str | None, typer.Option(help="all (the default), or names with commas between them.")
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(help='As for train, or GPUs that you do not have: "8 x A100-80GB", "4 x 24GiB".'),
    ] = None,
    capacity: Annotated[
        str | None, typer.Option(help="What each device may hold, as in 24GiB; by default what it has.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="As in --set train.steps=50."),
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Predict the memory of every strategy on every device: fits, tight, or does not fit.

    The strategies themselves run, on tensors without memory. Nothing is trained, and no GPU is needed.
    """
    chosen = load_config(config, overrides=overrides or ())

    from rankdeck.cli.plan_tables import Told
    from rankdeck.cli.plan_target import target_of

    target = target_of(chosen, devices, capacity)
    told = Told(as_json=as_json)
    for line in _lines(chosen, strategy, target):
        told.add(line)
    told.close()
    return 0


def _lines(config: RunConfig, strategy: str | None, target: Target) -> Iterator[PlanLine]:
    from rankdeck.planner.ask import answers
    from rankdeck.planner.rows import rows_for

    rows = rows_for(config, strategy, target.num_devices)
    yield from answers(config, rows, target)
