"""Sentences that are put together from a template and its arguments, so that they can be said in another
language later. The engine speaks English; the window looks the template up in its own language
(rankdeck_app/language.py) and fills in the same arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from typing import Any

import msgspec

Argument = str | int | float | bool


class Phrase(str):
    """A sentence as it reads in English, with what it was made of. What is sent or kept as JSON holds plain
    strings: `Problem` and `Telling` keep templates and arguments beside theirs.
    """

    __slots__ = ("arguments", "template")
    template: str
    arguments: dict[str, Argument]

    def plain_arguments(self) -> dict[str, Argument]:
        """The arguments as JSON takes them: a phrase among them as it reads in English, NaN as text."""
        return {
            name: str(value) if isinstance(value, str) or _is_no_number(value) else value
            for name, value in self.arguments.items()
        }


class Said(msgspec.Struct, frozen=True):
    """What a sentence was made of."""

    template: str
    arguments: dict[str, Argument] = {}


class Telling(msgspec.Struct, kw_only=True):
    """A line of JSON with sentences in it: fields that are made of phrases, alone or in a list, hold plain
    strings, and `phrases` says of each of them, and of those within them, what it was made of.
    """

    phrases: dict[str, Said] = {}

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, Phrase):
                setattr(self, name, self._plain(value))
            elif isinstance(value, list) and any(isinstance(one, Phrase) for one in value):
                setattr(self, name, [self._plain(one) if isinstance(one, Phrase) else one for one in value])

    def _plain(self, said: Phrase) -> str:
        for inner in said.arguments.values():
            if isinstance(inner, Phrase):
                self._plain(inner)
        self.phrases = {**self.phrases, str(said): Said(said.template, said.plain_arguments())}
        return str(said)


def phrase(template: str, /, **arguments: Any) -> Phrase:
    """The template with `{name}` filled in; without arguments it is taken as it stands. What is neither a
    number nor a text is filled in as its `str`; a phrase stays one.
    """
    known = {name: _plain(value) for name, value in arguments.items()}
    said = Phrase(template.format(**known) if known else template)
    said.template, said.arguments = template, known
    return said


def counted(one: str, many: str, n: int, /, **arguments: Any) -> Phrase:
    """The phrase for one of something, or for several; `{n}` is filled in, too."""
    return phrase(one if n == 1 else many, n=n, **arguments)


def marked(text: str) -> str:
    """The text itself: a constant that the window will say in its own language."""
    return text


COMMAS, ALL_OF = marked("{before}, {one}"), marked("{before} and {one}")


def listed(parts: Iterable[str], template: str = COMMAS) -> str:
    """A few parts one after another, in which phrases stay phrases."""
    return reduce(lambda before, one: phrase(template, before=before, one=one), list(parts) or [""])


def sentences(parts: Iterable[str | None]) -> str:
    """Those that there are, one after the other."""
    return listed(filter(None, parts), marked("{before} {one}"))


def _is_no_number(value: Argument) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _plain(value: object) -> Argument:
    """Numbers as Python's own, which can be encoded; numpy's are of their classes."""
    if isinstance(value, bool | Phrase):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)
