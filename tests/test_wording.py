"""The project's language: names are the field's terms, and sentences are plain English."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.helpers.checkout import CHECKOUT
from tests.helpers.source_files import (
    count_code_lines,
    iter_comments,
    iter_docstrings,
    iter_prose,
    list_definitions,
    list_sources,
    read_text,
    relative_name,
)

# The zoo's files are left out: a digest of each one says whether its results are still current.
BANNED_NAMES = re.compile(
    r"_*(told|tells?|telling|whereabouts|folds?|folded|desk|staying|spells?|heard|sameness|looks|looking|heart"
    r"|book|mend|remedy|waits_inside|steps_itself|settle|begun|begins|brings?|whoever|says|kept|ones|in_words"
    r"|stood|stands|goes|sees|spreading|until_end|callers|places|moment|ahead|say|asked|asks|known|owns"
    r"|most|keeps|holds?|made|gone|usual|given|wanted|shown)"
)
"""Riddles instead of nouns: what was told, seen, kept or held has a name in the field."""

BANNED_PHRASES = re.compile(
    r"\b(whoever|nobody|somebody|anew|(?:is|are|was|were) told|told apart|went on|goes on|begun|put by"
    r"|ways? out|look(?:s|ed)? over|it stands(?! out| for))\b",
    re.I,
)

MAX_HELP_CHARACTERS = 60
MAX_README_LINES = 150
MAX_TEST_NAME_CHARACTERS = 70
MIN_COMMENTS, MAX_COMMENTS = 3.0, 6.0
"""Comments for a hundred lines of code, in each package."""

# No function does "What ...": its docstring starts with a verb.
_NO_VERB = re.compile(
    r"(what|whose|who|whether|where|when|how|why|which|as|of|if|all|same|nothing|none|no|it|that|there|these"
    r"|this|because|also|only|everything|anything|one|those|its)",
    re.I,
)
_THIRD_PERSON = re.compile(r"(?!Focus|Process|Access|Discuss|Press|Pass)[A-Z][a-z]+[^s]s$")
_TRANSLATED_CALLS = frozenset({"phrase", "tr", "tr_noop"})
# Faults and breaks are called by their keys, and the page of a run of them is that run's.
_RECORDED_PAGES = ("docs/mutants.md", "docs/reliability.md", "docs/reliability-hosts.md", "docs/equality.md")


def _bound_names(file: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(read_text(file))):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name


def _packages() -> dict[str, list[Path]]:
    packages: dict[str, list[Path]] = {}
    for top in ("engine/rankdeck", "app/rankdeck_app"):
        for file in list_sources(top):
            inside = file.relative_to(CHECKOUT / top).parts
            packages.setdefault(f"{top}/{inside[0] if len(inside) > 1 else ''}", []).append(file)
    return packages


def _surface_texts(file: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts that people read: translated ones, and the help of options."""
    for node in ast.walk(ast.parse(read_text(file))):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        values = node.args[:1] if name in _TRANSLATED_CALLS else []
        for value in [*values, *(keyword.value for keyword in node.keywords if keyword.arg == "help")]:
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield node.lineno, value.value


def test_names_are_nouns_of_the_field() -> None:
    banned = [
        f"{relative_name(file)}:{line}: {name}"
        for file in list_sources("engine", "app", "tests")
        if "/zoo/" not in relative_name(file)
        for line, name in _bound_names(file)
        if BANNED_NAMES.fullmatch(name)
    ]
    assert not banned


def test_docstrings_of_functions_start_with_a_verb() -> None:
    odd = []
    for file in list_sources("engine", "app"):
        for item in list_definitions(file):
            first = (item.docstring.split() or [""])[0].strip("`'\"")
            is_function = item.name and not item.is_class and not item.is_property
            no_verb = is_function and (_NO_VERB.fullmatch(first) or _THIRD_PERSON.match(first))
            if no_verb or (item.is_class and first in ("What", "How", "Where", "Why", "There")):
                odd.append(f"{relative_name(file)}:{item.line}: {item.name}: {first}")
    assert not odd


def test_help_of_a_command_is_one_short_line_with_a_verb_first() -> None:
    from rankdeck.cli.app import app

    group: Any = typer.main.get_command(app)
    helps = {
        name: command.get_short_help_str(200)
        for name, command in group.commands.items()
        if not command.hidden
    }
    assert len(helps) > 20
    for name, text in helps.items():
        assert 0 < len(text) <= MAX_HELP_CHARACTERS and text.endswith("."), (name, text)
        first = text.split()[0]
        assert not _NO_VERB.fullmatch(first) and not _THIRD_PERSON.match(first), (name, text)


def test_each_package_has_comments_where_reasons_are_hidden() -> None:
    density = {
        package: 100
        * sum(not text.startswith(("# noqa", "# type")) for file in files for text in iter_comments(file))
        / sum(map(count_code_lines, files))
        for package, files in _packages().items()
    }
    assert len(density) > 25
    assert not {name: share for name, share in density.items() if not MIN_COMMENTS <= share <= MAX_COMMENTS}


def test_the_readme_is_short() -> None:
    assert len(read_text(CHECKOUT / "README.md").splitlines()) <= MAX_README_LINES


def test_names_of_tests_are_short() -> None:
    long = [
        f"{relative_name(file)}: {item.name}"
        for file in list_sources("tests")
        for item in list_definitions(file)
        if item.name.startswith("test_") and len(item.name) > MAX_TEST_NAME_CHARACTERS
    ]
    assert not long


def test_no_sentence_on_a_surface_is_a_riddle() -> None:
    odd = [
        f"{relative_name(file)}:{line}: {match[0]}"
        for file in list_sources("engine", "app")
        for line, text in [*_surface_texts(file), *iter_docstrings(file)]
        if (match := BANNED_PHRASES.search(text))
    ]
    assert not odd


def test_no_page_is_a_riddle() -> None:
    pages = [*list_sources("docs", suffix=".md"), CHECKOUT / "README.md", CHECKOUT / "CONTRIBUTING.md"]
    odd = [
        f"{relative_name(page)}: {match[0]}"
        for page in pages
        if relative_name(page) not in _RECORDED_PAGES
        for text in iter_prose(page)
        for match in BANNED_PHRASES.finditer(text)
    ]
    assert not odd


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("def f(told): pass", ["f", "told"]),
        ("for kept in (): _heard = 1", ["kept", "_heard"]),
        ("lambda ones: ones", ["ones"]),
    ],
)
def test_all_ways_of_binding_a_name_are_found(tmp_path: Path, source: str, names: list[str]) -> None:
    file = tmp_path / "a.py"
    file.write_text(source)
    assert Counter(name for _, name in _bound_names(file)) == Counter(names)
