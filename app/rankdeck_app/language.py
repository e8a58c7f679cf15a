"""Translates the window. Every text on screen goes through `tr`: English is in the code, other languages are
Qt translation files (languages/rankdeck_ko.qm, made by `make texts` and Qt Linguist).

The engine's messages are in English and carry their templates (rankdeck/base/phrases.py), which
`translate_problem` translates. The test language Pseudo makes texts longer and accented: a text that appears
without accents would stay untranslated in a real language, and a text that is cut off might be cut off in a
real language.
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
"""Pattern of a template with nothing to translate, such as '{before}, {one}'."""


def tr(text: str, singular: str = "", n: int | None = None, /, **values: Any) -> str:
    """Return the text in the window's language, with `{name}` filled in; without values, the text is not
    formatted.

    `singular` is the English text for an `n` of 1; `{n}` is filled in too. Other languages have as many
    plural forms as they need: `tr("{n} runs of {model}", "{n} run of {model}", n, model=name)`.
    """
    if n is None:
        return _fill(_lookup(text), text, values)
    english, values = (singular if n == 1 else text), {"n": n, **values}
    translation = QCoreApplication.translate("", text, singular, n)
    return _fill(translation if translation != text else _lookup(english), english, values)


def translate(message: str, phrases: Mapping[str, PhraseSource] | None = None) -> str:
    """Translate an engine message: a phrase, or a text that is a key of `phrases`. Other texts are returned
    unchanged."""
    if isinstance(message, Phrase):
        values = {
            name: translate(value) if isinstance(value, Phrase) else value
            for name, value in message.arguments.items()
        }
        return _fill(_lookup(message.template), message.template, values)
    if phrases is None or (source := phrases.get(message)) is None:
        return message
    # Leave out the message itself, because a text that contains itself would never end.
    rest = {text: phrase_source for text, phrase_source in phrases.items() if text != message}
    values = {
        name: translate(value, rest) if isinstance(value, str) else value
        for name, value in source.arguments.items()
    }
    return _translate_if_known(source.template, values, values != source.arguments) or message


def translate_problem(problem: Problem) -> Problem:
    """Return the problem in the window's language. Its templates may come from a run's file, so only those
    that have a translation are filled in."""
    translated: dict[str, Any] = {
        name: text for name in ("message", "advice") if (text := _translate_part(problem, name))
    }
    if problem.evidence:
        translated["evidence"] = tuple(
            structs.replace(item, text=_translate_part(problem, f"evidence.{index}") or item.text)
            for index, item in enumerate(problem.evidence)
        )
    return problem.replace_fields(**translated) if translated else problem


def error_text(error: Exception) -> str:
    """Return the error's message, translated if it is a RankdeckError."""
    return translate_problem(error.problem).sentence if isinstance(error, RankdeckError) else str(error)


def _translate_part(problem: Problem, name: str) -> str:
    """Translate one text of a problem, including the phrases filled into it; return "" if there is no
    translation."""
    template, values = problem.templates.get(name, ""), problem.arguments.get(name, {})
    inner = {hole: text for hole in values if (text := _translate_part(problem, f"{name}.{hole}"))}
    return _translate_if_known(template, {**values, **inner}, bool(inner))


def _translate_if_known(template: str, values: dict[str, Any], is_any_known: bool) -> str:
    """Translate a template from a file and fill in `values`; return "" if the template has no translation.

    A template that consists only of placeholders needs no translation if `is_any_known` is True, that is, if
    at least one of `values` has been translated.
    """
    translation = _lookup(template)
    if translation == template and not (is_any_known and _ONLY_PLACEHOLDERS.fullmatch(template)):
        return ""
    return _fill(translation, "", values)


# Cached, because views translate the same texts in every refresh; use_language clears the cache.
@cache
def _lookup(text: str) -> str:
    return QCoreApplication.translate("", text)


def _fill(translation: str, text: str, values: dict[str, Any]) -> str:
    """Fill the values into the translation. If the translation has placeholders without a value, use `text`
    instead."""
    if not values:
        return translation
    try:
        return translation.format(**values)
    except (LookupError, TypeError, ValueError, AttributeError):
        return text.format(**values) if text else ""


def language_names() -> tuple[str, ...]:
    """Return the language setting's choices; each translation is listed under its language's native name."""
    names = sorted(QLocale(_language_code(file)).nativeLanguageName() for file in _translation_files())
    return (SYSTEM, ENGLISH, *names, PSEUDO)


def use_language(name: str) -> list[QTranslator]:
    """Install the translators of a language and return them. Only texts translated afterwards are affected.

    `name` is one of `language_names` or the path of a .qm file. If the file cannot be read, texts stay
    English.
    """
    translators: list[QTranslator] = (
        [PseudoTranslator()] if name == PSEUDO else _load_translators(_find_file(name))
    )
    for translator in translators:
        QCoreApplication.installTranslator(translator)
    _lookup.cache_clear()
    return translators


def remove_translators(translators: list[QTranslator]) -> None:
    """Remove the translators that `use_language` installed."""
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
        languages = [QLocale(each).language() for each in QLocale.system().uiLanguages()]
        # English needs no file, so languages that the desktop ranks below it are ignored.
        order = (
            languages[: languages.index(QLocale.Language.English)]
            if QLocale.Language.English in languages
            else languages
        )
        files = [
            file
            for language in order
            for file in _translation_files()
            if QLocale(_language_code(file)).language() == language
        ]
        return files[0] if files else None
    return next(
        (file for file in _translation_files() if QLocale(_language_code(file)).nativeLanguageName() == name),
        None,
    )


def _load_translators(file: Path | None) -> list[QTranslator]:
    """Return the translators of the app's texts, which `file` contains, and of Qt's own dialogs; empty if
    `file` is None or cannot be loaded."""
    ours, qts = QTranslator(), QTranslator()
    if file is None or not ours.load(str(file)):
        return []
    folder = QLibraryInfo.path(QLibraryInfo.LibraryPath.TranslationsPath)
    return [ours, *([qts] if qts.load(f"qtbase_{_language_code(file)}", folder) else [])]


# The test language

_ACCENTED = str.maketrans(
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
    "àƀçďéƒĝĥîĵķļɱñöþɋŕšťûṽŵẋýžÀƁÇĎÉƑĜĤÎĴĶĻṀÑÖÞɊŔŠŤÛṼŴẊÝŽ",
)
# Placeholders, tags, entities and the & of mnemonics.
_UNTRANSLATED = re.compile(r"(\{[^{}]*\}|<[^<>]+>|&\w+;|&(?=\w))")


def pseudolocalize(text: str) -> str:
    """Return the text with accents and doubled vowels, about a third longer; keep placeholders and markup."""
    pieces = _UNTRANSLATED.split(text)
    return "".join(piece if number % 2 else _lengthen(piece) for number, piece in enumerate(pieces))


def _lengthen(piece: str) -> str:
    return re.sub(r"([aeiou])", r"\1\1", piece).translate(_ACCENTED)


class PseudoTranslator(QTranslator):
    """Translator that pseudolocalizes every text."""

    def translate(self, context: str, source: str, disambiguation: str | None = None, n: int = -1) -> str:
        return pseudolocalize(source)

    def isEmpty(self) -> bool:
        return False
