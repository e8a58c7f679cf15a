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

PhraseArgument = str | int | float | bool


class Phrase(str):
    """A sentence as it reads in English, with what it was made of. What is sent or kept as JSON holds plain
    strings: `Problem` and `TranslatableStruct` keep templates and arguments beside theirs.
    """

    __slots__ = ("arguments", "template")
    template: str
    arguments: dict[str, PhraseArgument]

    def plain_arguments(self) -> dict[str, PhraseArgument]:
        """The arguments as JSON takes them: a phrase among them as it reads in English, NaN as text."""
        return {
            name: str(value) if isinstance(value, str) or _is_not_finite(value) else value
            for name, value in self.arguments.items()
        }


class PhraseSource(msgspec.Struct, frozen=True):
    """What a sentence was made of."""

    template: str
    arguments: dict[str, PhraseArgument] = {}


class TranslatableStruct(msgspec.Struct, kw_only=True):
    """A line of JSON with sentences in it: fields that are made of phrases, alone or in a list, hold plain
    strings, and `phrases` says of each of them, and of those within them, what it was made of.
    """

    phrases: dict[str, PhraseSource] = {}

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if isinstance(value, Phrase):
                setattr(self, name, self._record_phrase(value))
            elif isinstance(value, list) and any(isinstance(one, Phrase) for one in value):
                setattr(
                    self,
                    name,
                    [self._record_phrase(one) if isinstance(one, Phrase) else one for one in value],
                )

    def _record_phrase(self, said: Phrase) -> str:
        for inner in said.arguments.values():
            if isinstance(inner, Phrase):
                self._record_phrase(inner)
        self.phrases = {**self.phrases, str(said): PhraseSource(said.template, said.plain_arguments())}
        return str(said)


def phrase(template: str, /, **arguments: Any) -> Phrase:
    """The template with `{name}` filled in; without arguments it is taken as it stands. What is neither a
    number nor a text is filled in as its `str`; a phrase stays one.
    """
    known = {name: _to_builtin(value) for name, value in arguments.items()}
    said = Phrase(template.format(**known) if known else template)
    said.template, said.arguments = template, known
    return said


def plural_phrase(one: str, many: str, n: int, /, **arguments: Any) -> Phrase:
    """The phrase for one of something, or for several; `{n}` is filled in, too."""
    return phrase(one if n == 1 else many, n=n, **arguments)


def tr_noop(text: str) -> str:
    """The text itself: a constant that the window will say in its own language."""
    return text


COMMA_TEMPLATE, AND_TEMPLATE = tr_noop("{before}, {one}"), tr_noop("{before} and {one}")


def join_phrases(parts: Iterable[str], template: str = COMMA_TEMPLATE) -> str:
    """A few parts one after another, in which phrases stay phrases."""
    return reduce(lambda before, one: phrase(template, before=before, one=one), list(parts) or [""])


def join_sentences(parts: Iterable[str | None]) -> str:
    """Those that there are, one after the other."""
    return join_phrases(filter(None, parts), tr_noop("{before} {one}"))


def _is_not_finite(value: PhraseArgument) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _to_builtin(value: object) -> PhraseArgument:
    """Numbers as Python's own, which can be encoded; numpy's are of their classes."""
    if isinstance(value, bool | Phrase):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)
