"""The language of the window. Every text that a person reads goes through `tr`: English is in the code, other
languages are Qt's own files (languages/rankdeck_ko.qm, made by `make texts` and Qt Linguist).

What the engine says comes as English with its template beside it (rankdeck/base/phrases.py); `in_words` says
it in the window's language. The made-up language Pseudo is longer and accented: what is plain or cut in it
would be plain or cut in a real one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from msgspec import structs
from PySide6.QtCore import QCoreApplication, QLibraryInfo, QLocale, QTranslator

from rankdeck.base.errors import Problem, RankdeckError
from rankdeck.base.home import expanded
from rankdeck.base.phrases import Phrase, Said

FOLDER = Path(__file__).with_name("languages")
SYSTEM, ENGLISH, PSEUDO = "System", "English", "Pseudo"
ENDING = ".qm"
_ONLY_HOLES = re.compile(r"(?:\{\w+\}|[^\w{}])*")
"""A template with nothing to translate: '{before}, {one}'."""


def tr(text: str, one: str = "", n: int | None = None, /, **values: Any) -> str:
    """A text in the window's language, with `{name}` filled in; without values it is taken as it stands.

    `one` is the English for an `n` of 1, and `{n}` is filled in, too; another language has as many forms for
    `n` as it needs: `tr("{n} runs of {model}", "{n} run of {model}", n, model=name)`.
    """
    if n is None:
        return _filled(_found(text), text, values)
    english, values = (one if n == 1 else text), {"n": n, **values}
    found = QCoreApplication.translate("", text, one, n)
    return _filled(found if found != text else _found(english), english, values)


def spoken(said: str, phrases: Mapping[str, Said] | None = None) -> str:
    """What the engine says, in the window's language: a phrase, or a text that `phrases` (of a `Telling`)
    knows. Anything else is what it is.
    """
    if isinstance(said, Phrase):
        values = {
            name: spoken(value) if isinstance(value, Phrase) else value
            for name, value in said.arguments.items()
        }
        return _filled(_found(said.template), said.template, values)
    if phrases is None or (made := phrases.get(said)) is None:
        return said
    rest = {text: one for text, one in phrases.items() if text != said}
    values = {
        name: spoken(value, rest) if isinstance(value, str) else value
        for name, value in made.arguments.items()
    }
    return _if_known(made.template, values, values != made.arguments) or said


def in_words(problem: Problem) -> Problem:
    """A problem as the window says it. Only templates that the language knows are filled in: they may come
    from a file of a run.
    """
    said: dict[str, Any] = {name: text for name in ("message", "advice") if (text := _said(problem, name))}
    if problem.evidence:
        said["evidence"] = tuple(
            structs.replace(seen, text=_said(problem, f"evidence.{place}") or seen.text)
            for place, seen in enumerate(problem.evidence)
        )
    return problem.but(**said) if said else problem


def error_in_words(error: Exception) -> str:
    """The sentence of an error of ours as the window says it; of another what it says itself."""
    return in_words(error.problem).sentence if isinstance(error, RankdeckError) else str(error)


def _said(problem: Problem, name: str) -> str:
    """A part of it, with the phrases that are filled in; "" where the language knows nothing of it."""
    template, values = problem.templates.get(name, ""), problem.arguments.get(name, {})
    inner = {hole: text for hole in values if (text := _said(problem, f"{name}.{hole}"))}
    return _if_known(template, {**values, **inner}, bool(inner))


def _if_known(template: str, values: dict[str, Any], is_any_known: bool) -> str:
    """A template of a file, filled in; "" where the language does not know it, unless it only puts others
    beside each other.
    """
    found = _found(template)
    if found == template and not (is_any_known and _ONLY_HOLES.fullmatch(template)):
        return ""
    return _filled(found, "", values)


@cache
def _found(text: str) -> str:
    return QCoreApplication.translate("", text)


def _filled(found: str, text: str, values: dict[str, Any]) -> str:
    """A translation that asks for values that there are not is none."""
    if not values:
        return found
    try:
        return found.format(**values)
    except (LookupError, TypeError, ValueError, AttributeError):
        return text.format(**values) if text else ""


def known_languages() -> tuple[str, ...]:
    """The names that the setting takes; each language calls itself by its own name."""
    names = sorted(QLocale(_code(file)).nativeLanguageName() for file in _files())
    return (SYSTEM, ENGLISH, *names, PSEUDO)


def use_language(name: str) -> list[QTranslator]:
    """Speak it from now on: for texts that are asked for after this. `name` is one of `known_languages`, or
    the path of a .qm file. What cannot be read leaves English.
    """
    made: list[QTranslator] = [Pseudo()] if name == PSEUDO else _loaded(_file_of(name))
    for translator in made:
        QCoreApplication.installTranslator(translator)
    _found.cache_clear()
    return made


def forget(translators: list[QTranslator]) -> None:
    """Speak as before `use_language`."""
    for translator in translators:
        QCoreApplication.removeTranslator(translator)
    _found.cache_clear()


def _files() -> list[Path]:
    return sorted(FOLDER.glob(f"rankdeck_*{ENDING}"))


def _code(file: Path) -> str:
    return file.stem.removeprefix("rankdeck_")


def _file_of(name: str) -> Path | None:
    if name.endswith(ENDING):
        return expanded(name)
    if name == SYSTEM:
        wanted = [QLocale(each).language() for each in QLocale.system().uiLanguages()]
        order = (
            wanted[: wanted.index(QLocale.Language.English)] if QLocale.Language.English in wanted else wanted
        )
        found = [
            file for language in order for file in _files() if QLocale(_code(file)).language() == language
        ]
        return found[0] if found else None
    return next((file for file in _files() if QLocale(_code(file)).nativeLanguageName() == name), None)


def _loaded(file: Path | None) -> list[QTranslator]:
    """Our texts, and those of Qt's own dialogs."""
    ours, qts = QTranslator(), QTranslator()
    if file is None or not ours.load(str(file)):
        return []
    place = QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)
    return [ours, *([qts] if qts.load(f"qtbase_{_code(file)}", place) else [])]


# The made-up language

_ACCENTED = str.maketrans(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "àƀçďéƒĝĥîĵķļɱñöþɋŕšťûṽŵẋýžÀƁÇĎÉƑĜĤÎĴĶĻṀÑÖÞɊŔŠŤÛṼŴẊÝŽ",
)
_KEPT = re.compile(r"(\{[^{}]*\}|<[^<>]+>|&\w+;|&(?=\w))")


def pseudo(text: str) -> str:
    """A text with accents and vowels twice, a third longer; what is filled in and markup stay."""
    parts = _KEPT.split(text)
    return "".join(part if number % 2 else _longer(part) for number, part in enumerate(parts))


def _longer(part: str) -> str:
    return re.sub(r"([aeiou])", r"\1\1", part).translate(_ACCENTED)


class Pseudo(QTranslator):
    """Knows every text."""

    def translate(self, context: str, source: str, disambiguation: str | None = None, n: int = -1) -> str:
        return pseudo(source)

    def isEmpty(self) -> bool:
        return False
