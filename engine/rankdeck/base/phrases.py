"""Builds sentences that include their template and arguments, so that they can be translated later.

The engine produces English. The app looks up the template in its own language (rankdeck_app/language.py) and
fills in the same arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import reduce
from typing import Any

import msgspec

PhraseArgument = str | int | float | bool


class Phrase(str):
    """An English sentence with its template and arguments.

    In JSON, it is a plain string: `Problem` and `TranslatableStruct` store its template and arguments in
    other fields.
    """

    __slots__ = ("arguments", "template")
    template: str
    arguments: dict[str, PhraseArgument]

    def plain_arguments(self) -> dict[str, PhraseArgument]:
        """Return the arguments in a form for JSON: phrases as English text, NaN and infinities as text."""
        return {
            name: str(value) if isinstance(value, str) or _is_not_finite(value) else value
            for name, value in self.arguments.items()
        }


class PhraseSource(msgspec.Struct, frozen=True):
    """The template and arguments of a sentence."""

    template: str
    arguments: dict[str, PhraseArgument] = {}


class TranslatableStruct(msgspec.Struct, kw_only=True):
    """A line of JSON with translatable sentences.

    Fields that are phrases, or lists of phrases, become plain strings. `phrases` maps each sentence, and each
    phrase inside a sentence, to its template and arguments.
    """

    phrases: dict[str, PhraseSource] = {}

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            # msgspec does not encode subclasses of str.
            if isinstance(value, Phrase):
                setattr(self, name, self._record_phrase(value))
            elif isinstance(value, list) and any(isinstance(item, Phrase) for item in value):
                setattr(
                    self,
                    name,
                    [self._record_phrase(item) if isinstance(item, Phrase) else item for item in value],
                )

    def _record_phrase(self, text: Phrase) -> str:
        for inner in text.arguments.values():
            if isinstance(inner, Phrase):
                self._record_phrase(inner)
        self.phrases = {**self.phrases, str(text): PhraseSource(text.template, text.plain_arguments())}
        return str(text)


def phrase(template: str, /, **arguments: Any) -> Phrase:
    """Fill the `{name}` fields of the template; without arguments, use the template as it is.

    Arguments that are neither numbers nor strings are converted with `str`; a phrase stays a phrase.
    """
    values = {name: _to_builtin(value) for name, value in arguments.items()}
    result = Phrase(template.format(**values) if values else template)
    result.template, result.arguments = template, values
    return result


def plural_phrase(singular: str, many: str, n: int, /, **arguments: Any) -> Phrase:
    """Fill the singular or the plural (`many`) template, depending on `n`, which also replaces `{n}`."""
    return phrase(singular if n == 1 else many, n=n, **arguments)


def tr_noop(text: str) -> str:
    """Return the text unchanged; the call marks a constant that the app translates."""
    return text


COMMA_TEMPLATE, AND_TEMPLATE = tr_noop("{before}, {one}"), tr_noop("{before} and {one}")


def join_phrases(texts: Iterable[str], template: str = COMMA_TEMPLATE) -> str:
    """Join texts with a template, by default with commas; phrases stay translatable."""
    return reduce(lambda before, one: phrase(template, before=before, one=one), list(texts) or [""])


def join_sentences(sentences: Iterable[str | None]) -> str:
    """Join the sentences that are not empty."""
    return join_phrases(filter(None, sentences), tr_noop("{before} {one}"))


def _is_not_finite(value: PhraseArgument) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _to_builtin(value: object) -> PhraseArgument:
    """Convert a number to Python's own type (numpy's cannot be encoded), and any other value to text."""
    if isinstance(value, bool | Phrase):
        return value
    if isinstance(value, int):
        return int(value)
    return float(value) if isinstance(value, float) else str(value)
