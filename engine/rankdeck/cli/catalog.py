"""`rankdeck strategies`, `presets`, `validate` and `adopt`: list choices, check or write a configuration."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from rankdeck.base.errors import ConfigError
from rankdeck.base.home import expand_home
from rankdeck.base.phrases import phrase, plural_phrase, tr_noop
from rankdeck.base.units import format_setting
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, ConfigName, RunName, check_output_file, find_run, load_config


def strategies() -> int:
    """List the parallel strategies and their options."""
    from rankdeck.config.catalog import STRATEGIES, option_fields

    out = console.out()
    for card in STRATEGIES.values():
        out.print(Text(card.name, style="bold cyan").append(f"  {card.title}, {card.hint}", style="dim"))
        facts = {
            "Memory": card.placement,
            "Sends": card.communication,
            "Use it when": card.strengths,
            "Avoid it when": card.limits,
        }
        lines = [card.summary, *(f"{label}: {text}" for label, text in facts.items() if text)]
        for option in option_fields(card.options):
            choices = f" ({', '.join(map(str, option.choices))})" if len(option.choices) > 1 else ""
            setting = format_setting(f"strategy.{option.name}", option.default)
            lines.append(f"{setting}{choices}: {option.text}")
        for line in lines:
            _print_indented(out, line)
        out.print()
    return 0


def presets() -> int:
    """List the presets and what they show."""
    from rankdeck.config import presets as ready

    out = console.out()
    for card in ready.list_presets():
        heading = Text(card.name, style="bold cyan").append(
            f"  {card.strategy} on {card.devices}", style="dim"
        )
        if card.needs_gpu:
            heading.append("  needs a GPU", style="yellow")
        out.print(heading)
        for paragraph in card.text.split("\n\n"):
            _print_indented(out, paragraph)
        out.print()
    out.print("Try one: rankdeck train digits-mlp", style="dim")
    return 0


def validate(config: ConfigName, as_json: AsJson = False) -> int:
    """Check a configuration without running it."""
    from rankdeck.config.consent import check_code

    chosen = load_config(config)
    check_code(chosen)
    if as_json:
        console.print_json({"problems": []})
        return 0
    epochs, steps = chosen.train.epochs, chosen.train.known_steps or 0
    length = (
        plural_phrase(tr_noop("1 epoch"), tr_noop("{n} epochs"), epochs)
        if epochs
        else plural_phrase(tr_noop("1 step"), tr_noop("{n} steps"), steps)
    )
    console.out().print(
        f"{config} is valid: {chosen.strategy.use} on {chosen.devices.use}, {chosen.model.use} on "
        f"{chosen.data.use}, {length}."
    )
    return 0


def _print_indented(out: Any, text: str) -> None:
    # Capped, because the console of a pipe is 400 columns wide and prose of that width is hard to read.
    width = max(40, min(out.width, 110) - 2)
    out.print(textwrap.indent(textwrap.fill(text, width), "  "))


# `rankdeck adopt`: turn the run of a user's script into a configuration of the same training.


def adopt(
    name: RunName,
    file: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="File to write. Default: train.toml for train.py."
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")] = False,
    as_json: AsJson = False,
) -> int:
    """Turn a script's run into a configuration.

    Writes the values found in the run and in the script's source. Values found in neither are written as "?"
    for you to fill in.
    """
    from rankdeck.adopt.adopt import adopt as adopted_from
    from rankdeck.adopt.adopt import default_file
    from rankdeck.run.export import write_export

    run = find_run(name)
    file = default_file(run, Path()) if file is None else expand_home(file)
    check_output_file(file)
    # The paths in the new configuration are relative to the folder of its file.
    adopted = adopted_from(run, file.absolute().parent)
    if file.exists() and not force:
        raise ConfigError(
            phrase("{file} already exists.", file=file),
            code="exists",
            path=str(file),
            advice=phrase("Choose another file with -o, or overwrite this file with --force."),
        )
    write_export(file, lambda target: target.write_text(adopted.text, encoding="utf-8"))
    if run.outcome() == "running":
        console.err().print(
            f"{run.name} is still running: the file covers only what it has done so far.", style="yellow"
        )
    if as_json:
        keys = ("code", "path", "line", "message", "advice")
        problems = [{key: getattr(problem, key) for key in keys} for problem in adopted.problems]
        console.print_json({"path": str(file.absolute()), "problems": problems})
        return 0
    quoted = shlex.quote(str(file))
    for problem in adopted.problems:
        console.err().print(problem.headline(str(file)), soft_wrap=True)
    if adopted.problems:
        console.err().print(f"See the comments in the file. Then check it with: rankdeck validate {quoted}")
    else:
        console.err().print(f"Nothing is left to fill in. Train it with: rankdeck train {quoted}")
    # Only the path is on stdout, so that $(rankdeck adopt RUN) names the file.
    typer.echo(file)
    return 0
