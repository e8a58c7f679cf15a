"""`rankdeck strategies`, `presets`, `validate`: what can be chosen, and whether a choice holds."""

from __future__ import annotations

import textwrap
from typing import Any

from rich.text import Text

from rankdeck.base.phrases import counted, marked
from rankdeck.base.units import format_setting
from rankdeck.cli import console
from rankdeck.cli.options import AsJson, ConfigName, load_config


def strategies() -> int:
    """List the parallel strategies: where everything lives, what is sent, when each wins."""
    from rankdeck.config.catalog import STRATEGIES, option_fields

    out = console.out()
    for card in STRATEGIES.values():
        out.print(Text(card.name, style="bold cyan").append(f"  {card.title}, {card.hint}", style="dim"))
        facts = {"lives": card.lives, "sends": card.sends, "wins": card.wins, "breaks": card.breaks}
        lines = [card.summary, *(f"{label}: {words}" for label, words in facts.items() if words)]
        for option in option_fields(card.options):
            choices = f" ({', '.join(map(str, option.choices))})" if len(option.choices) > 1 else ""
            setting = format_setting(f"strategy.{option.name}", option.default)
            lines.append(f"{setting}{choices}: {option.text}")
        for line in lines:
            _print_indented(out, line)
        out.print()
    return 0


def presets() -> int:
    """List the ready configurations and what one learns from each."""
    from rankdeck.config import presets as ready

    out = console.out()
    for card in ready.all():
        words = Text(card.name, style="bold cyan").append(f"  {card.strategy} on {card.devices}", style="dim")
        if card.needs_gpu:
            words.append("  needs a GPU", style="yellow")
        out.print(words)
        for paragraph in card.text.split("\n\n"):
            _print_indented(out, paragraph)
        out.print()
    out.print("Try one: rankdeck train digits-mlp", style="dim")
    return 0


def validate(config: ConfigName, as_json: AsJson = False) -> int:
    """Check a configuration without running anything."""
    from rankdeck.config.files_named import check_code

    chosen = load_config(config)
    check_code(chosen)
    if as_json:
        console.as_json({"problems": []})
        return 0
    epochs, steps = chosen.train.epochs, chosen.train.known_steps or 0
    length = (
        counted(marked("1 epoch"), marked("{n} epochs"), epochs)
        if epochs
        else counted(marked("1 step"), marked("{n} steps"), steps)
    )
    console.out().print(
        f"{config} is valid: {chosen.strategy.use} on {chosen.devices.use}, {chosen.model.use} on "
        f"{chosen.data.use}, {length}."
    )
    return 0


def _print_indented(out: Any, words: str) -> None:
    width = max(40, min(out.width, 110) - 2)
    out.print(textwrap.indent(textwrap.fill(words, width), "  "))
