"""`rankdeck verify`: whether a strategy computes what one device computes, without training anything."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from rankdeck.cli import console
from rankdeck.cli.options import AsJson, ConfigName, Overrides, load_config
from rankdeck.run.verified import DIFFERS, EQUAL, NOTED, UNCHECKED

if TYPE_CHECKING:
    from rankdeck.config import RunConfig
    from rankdeck.launch.verifying import Verification
    from rankdeck.planner.candidates import Candidate

_LABEL_WIDTH = 34
_STYLES = {EQUAL: "green", NOTED: "green", DIFFERS: "bold red", UNCHECKED: "yellow"}


def verify(
    config: ConfigName,
    strategy: Annotated[
        str | None,
        typer.Option(help="own (the default), all, or names with commas."),
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="auto, cpu:4 (a rehearsal), gpu:all, gpu:0,2 or gpu:GPU-<uuid>.")
    ] = None,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> int:
    """Compare two steps of a strategy with one plain device.

    Losses, gradients, weights and buffers are compared over whole batches. Exit status 1: a strategy differs
    for another reason than its nature, or the configuration's own, or every one, cannot run.
    """
    chosen = load_config(config, devices=devices, overrides=overrides or ())
    from rankdeck.cli.until_end import term_interrupts
    from rankdeck.launch.verifying import verifications

    differs, can_run = False, False
    with term_interrupts():
        for row, found in verifications(chosen, _rows(chosen, strategy), command_line=sys.argv):
            differs |= found.outcome == DIFFERS or (found.outcome == "failed" and row.configured)
            can_run |= found.outcome != "failed"
            _show(row, found, as_json=as_json)
    return int(differs or not can_run)


def _rows(config: RunConfig, strategy: str | None) -> list[Candidate]:
    from rankdeck.cli.plan_target import target_of
    from rankdeck.planner.candidates import OWN, candidates_for

    return candidates_for(config, strategy or OWN, target_of(config, None, None).num_devices)


def _show(row: Candidate, found: Verification, *, as_json: bool) -> None:
    if as_json:
        facts = {"strategy": row.strategy, "options": row.options, "label": row.label, **found.facts()}
        console.out().print(json.dumps(facts), soft_wrap=True)
        return
    words = Text(row.label.ljust(_LABEL_WIDTH), style="bold")
    words.append(f"  {found.text}", style=f"{_STYLES.get(found.outcome, 'red')} not bold")
    console.out().print(words, soft_wrap=True)
    for problem in found.problems:
        console.problem(problem)
