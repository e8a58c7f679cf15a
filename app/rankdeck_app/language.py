"""The language of the window. Every text that a person reads goes through `tr`: English is in the code, other
languages are Qt's own files (languages/rankdeck_ko.qm, made by `make texts` and Qt Linguist).

What the engine says comes as English with its template beside it (rankdeck/base/phrases.py);
`translate_problem` says it in the window's language. The made-up language Pseudo is longer and accented: what
is plain or cut in it would be plain or cut in a real one.
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
from rankdeck.base.home import expand_home
from rankdeck.base.phrases import Phrase, PhraseSource

FOLDER = Path(__file__).with_name("languages")
SYSTEM, ENGLISH, PSEUDO = "System", "English", "Pseudo"
QM_SUFFIX = ".qm"
_ONLY_PLACEHOLDERS = re.compile(r"(?:\{\w+\}|[^\w{}])*")
"""A template with nothing to translate: '{before}, {one}'."""


def tr(text: str, one: str = "", n: int | None = None, /, **values: Any) -> str:
    """A text in the window's language, with `{name}` filled in; without values it is taken as it stands.

    `one` is the English for an `n` of 1, and `{n}` is filled in, too; another language has as many forms for
    `n` as it needs: `tr("{n} runs of {model}", "{n} run of {model}", n, model=name)`.
    """
    if n is None:
        return _fill(_lookup(text), text, values)
    english, values = (one if n == 1 else text), {"n": n, **values}
    found = QCoreApplication.translate("", text, one, n)
    return _fill(found if found != text else _lookup(english), english, values)


def translate(said: str, phrases: Mapping[str, PhraseSource] | None = None) -> str:
    """What the engine says, in the window's language: a phrase, or a text that `phrases` (of a `Telling`)
    knows. Anything else is what it is.
    """
    if isinstance(said, Phrase):
        values = {
            name: translate(value) if isinstance(value, Phrase) else value
            for name, value in said.arguments.items()
        }
        return _fill(_lookup(said.template), said.template, values)
    if phrases is None or (made := phrases.get(said)) is None:
        return said
    rest = {text: one for text, one in phrases.items() if text != said}
    values = {
        name: translate(value, rest) if isinstance(value, str) else value
        for name, value in made.arguments.items()
    }
    return _translate_if_known(made.template, values, values != made.arguments) or said


def translate_problem(problem: Problem) -> Problem:
    """A problem as the window says it. Only templates that the language knows are filled in: they may come
    from a file of a run.
    """
    said: dict[str, Any] = {
        name: text for name in ("message", "advice") if (text := _translate_part(problem, name))
    }
    if problem.evidence:
        said["evidence"] = tuple(
            structs.replace(seen, text=_translate_part(problem, f"evidence.{place}") or seen.text)
            for place, seen in enumerate(problem.evidence)
        )
    return problem.replace_fields(**said) if said else problem


def error_text(error: Exception) -> str:
    """The sentence of an error of ours as the window says it; of another what it says itself."""
    return translate_problem(error.problem).sentence if isinstance(error, RankdeckError) else str(error)


def _translate_part(problem: Problem, name: str) -> str:
    """A part of it, with the phrases that are filled in; "" where the language knows nothing of it."""
    template, values = problem.templates.get(name, ""), problem.arguments.get(name, {})
    inner = {hole: text for hole in values if (text := _translate_part(problem, f"{name}.{hole}"))}
    return _translate_if_known(template, {**values, **inner}, bool(inner))


def _translate_if_known(template: str, values: dict[str, Any], is_any_known: bool) -> str:
    """A template of a file, filled in; "" where the language does not know it, unless it only puts others
    beside each other.
    """
    found = _lookup(template)
    if found == template and not (is_any_known and _ONLY_PLACEHOLDERS.fullmatch(template)):
        return ""
    return _fill(found, "", values)


@cache
def _lookup(text: str) -> str:
    return QCoreApplication.translate("", text)


def _fill(found: str, text: str, values: dict[str, Any]) -> str:
    """A translation that asks for values that there are not is none."""
    if not values:
        return found
    try:
        return found.format(**values)
    except (LookupError, TypeError, ValueError, AttributeError):
        return text.format(**values) if text else ""


def language_names() -> tuple[str, ...]:
    """The names that the setting takes; each language calls itself by its own name."""
    names = sorted(QLocale(_language_code(file)).nativeLanguageName() for file in _translation_files())
    return (SYSTEM, ENGLISH, *names, PSEUDO)


def use_language(name: str) -> list[QTranslator]:
    """Speak it from now on: for texts that are asked for after this. `name` is one of `language_names`, or
    the path of a .qm file. What cannot be read leaves English.
    """
    made: list[QTranslator] = [PseudoTranslator()] if name == PSEUDO else _load_translators(_find_file(name))
    for translator in made:
        QCoreApplication.installTranslator(translator)
    _lookup.cache_clear()
    return made


def remove_translators(translators: list[QTranslator]) -> None:
    """Speak as before `use_language`."""
    for translator in translators:
        QCoreApplication.removeTranslator(translator)
    _lookup.cache_clear()


def _translation_files() -> list[Path]:
    return sorted(FOLDER.glob(f"rankdeck_*{QM_SUFFIX}"))


def _language_code(file: Path) -> str:
    return file.stem.removeprefix("rankdeck_")


def _find_file(name: str) -> Path | None:
    if name.endswith(QM_SUFFIX):
        return expand_home(name)
    if name == SYSTEM:
        wanted = [QLocale(each).language() for each in QLocale.system().uiLanguages()]
        order = (
            wanted[: wanted.index(QLocale.Language.English)] if QLocale.Language.English in wanted else wanted
        )
        found = [
            file
            for language in order
            for file in _translation_files()
            if QLocale(_language_code(file)).language() == language
        ]
        return found[0] if found else None
    return next(
        (file for file in _translation_files() if QLocale(_language_code(file)).nativeLanguageName() == name),
        None,
    )


def _load_translators(file: Path | None) -> list[QTranslator]:
    """Our texts, and those of Qt's own dialogs."""
    ours, qts = QTranslator(), QTranslator()
    if file is None or not ours.load(str(file)):
        return []
    place = QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)
    return [ours, *([qts] if qts.load(f"qtbase_{_language_code(file)}", place) else [])]


# The made-up language

_ACCENTED = str.maketrans(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "àƀçďéƒĝĥîĵķļɱñöþɋŕšťûṽŵẋýžÀƁÇĎÉƑĜĤÎĴĶĻṀÑÖÞɊŔŠŤÛṼŴẊÝŽ",
)
_UNTRANSLATED = re.compile(r"(\{[^{}]*\}|<[^<>]+>|&\w+;|&(?=\w))")


def pseudolocalize(text: str) -> str:
    """A text with accents and vowels twice, a third longer; what is filled in and markup stay."""
    parts = _UNTRANSLATED.split(text)
    return "".join(part if number % 2 else _lengthen(part) for number, part in enumerate(parts))


def _lengthen(part: str) -> str:
    return re.sub(r"([aeiou])", r"\1\1", part).translate(_ACCENTED)


class PseudoTranslator(QTranslator):
    """Knows every text."""

    def translate(self, context: str, source: str, disambiguation: str | None = None, n: int = -1) -> str:
        return pseudolocalize(source)

    def isEmpty(self) -> bool:
        return False
