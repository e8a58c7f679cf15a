"""Sentences that are put together from a template and its arguments, so that they can be said in another
language later. The engine speaks English; the window looks the template up in its own language
(rankdeck_app/language.py) and fills in the same arguments.
"""

from __future__ import annotations

from typing import Any

Argument = str | int | float | bool


class Phrase(str):
    """A sentence as it reads in English, with what it was made of. It is for a message or an advice, which
    keep both; anywhere else it is a plain string.
    """

    __slots__ = ("arguments", "template")
    template: str
    arguments: dict[str, Argument]


def phrase(template: str, /, **arguments: Any) -> Phrase:
    """The template with `{name}` filled in; without arguments it is taken as it stands. What is neither a
    number nor a text is filled in as its `str`.
    """
    known = {name: _plain(value) for name, value in arguments.items()}
    said = Phrase(template.format(**known) if known else template)
    said.template, said.arguments = template, known
    return said


def marked(text: str) -> str:
    """The text itself: a constant that the window will say in its own language."""
    return text


def _plain(value: object) -> Argument:
    """Numbers as Python's own, which can be encoded; numpy's are of their classes."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)
