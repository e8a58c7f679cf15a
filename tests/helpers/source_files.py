"""Read the project's own sources for the tests of its style: files, definitions, prose and comments."""

from __future__ import annotations

import ast
import dataclasses
import functools
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.helpers.checkout import CHECKOUT


def list_sources(*folders: str, suffix: str = ".py") -> list[Path]:
    return [file for folder in folders for file in sorted((CHECKOUT / folder).rglob(f"*{suffix}"))]


def relative_name(file: Path) -> str:
    return file.relative_to(CHECKOUT).as_posix()


@dataclasses.dataclass(frozen=True)
class Definition:
    """A module (its `name` is empty), class or function."""

    name: str
    line: int
    num_lines: int
    docstring: str
    is_class: bool
    is_property: bool = False


@functools.cache
def read_text(file: Path) -> str:
    return file.read_text("utf-8")


@functools.cache
def list_definitions(file: Path) -> tuple[Definition, ...]:
    """Return the module, then its classes and functions at any depth.

    Each file is parsed once for all tests, and no tree is kept.
    """
    tree = ast.parse(read_text(file))
    module = Definition("", 1, 0, ast.get_docstring(tree) or "", is_class=False)
    return (
        module,
        *(
            Definition(
                node.name,
                node.lineno,
                (node.end_lineno or 0) - node.lineno + 1,
                ast.get_docstring(node) or "",
                is_class=isinstance(node, ast.ClassDef),
                is_property=any("property" in ast.unparse(decorator) for decorator in node.decorator_list),
            )
            for node in iter_statements(tree)
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        ),
    )


def iter_statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the statements below a node without entering expressions, which define nothing."""
    for field in ("body", "handlers", "orelse", "finalbody", "cases"):
        inner = getattr(node, field, ())
        for statement in inner if isinstance(inner, list) else ():
            yield statement
            yield from iter_statements(statement)


def iter_nodes(file: Path, texts: tuple[str, ...]) -> Iterator[ast.AST]:
    """Yield all nodes of a file that contains one of these words, else none."""
    if any(word in read_text(file) for word in texts):
        yield from ast.walk(ast.parse(read_text(file)))


def iter_docstrings(file: Path) -> Iterator[tuple[int, str]]:
    return ((item.line, item.docstring) for item in list_definitions(file) if item.docstring)


def iter_comments(file: Path) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(read_text(file)).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def iter_prose(file: Path) -> Iterator[str]:
    """Yield what a file says to its readers: docstrings and comments of Python, a page without its code."""
    if file.suffix == ".md":
        yield re.sub(r"^```.*?^```", "", read_text(file), flags=re.M | re.S)
        return
    yield from (text for _, text in iter_docstrings(file))
    yield from iter_comments(file)


def count_code_lines(file: Path) -> int:
    """Count the lines with code; a docstring is none."""
    tree = ast.parse(read_text(file))
    docstrings = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or 0) + 1)
    }
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines = {
        line
        for token in tokenize.generate_tokens(io.StringIO(read_text(file)).readline)
        if token.type not in layout and token.type != tokenize.ENDMARKER
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - docstrings)
