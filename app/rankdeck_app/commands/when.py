"""When a command applies: a small expression over named facts, as in VS Code's `when` clauses.

    sideBarVisible && !zenMode
    activePage == 'run' || panel == 'output'

A fact is absent (false) until somebody sets it. Operators by rising strength: ||, &&, == and !=, !. Text
stands in single quotes; a bare word on the right of == is text too, so `activePage == run` reads the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

Facts = Mapping[str, object]
Test = Callable[[Facts], bool]

_TOKEN = re.compile(r"\s*(\|\||&&|==|!=|!|\(|\)|'[^']*'|[\w.:\-]+)")


class WhenError(ValueError):
    """A `when` expression cannot be read. The message quotes it and names the place."""


def _tokens(text: str) -> list[str]:
    tokens: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            raise WhenError(f"when: cannot read {text[at:]!r} in {text!r}.")
        tokens.append(match[1])
        at = match.end()
    return tokens


class _WhenReader:
    """Recursive descent; one method per strength."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.rest = _tokens(text)

    def peek(self) -> str:
        return self.rest[0] if self.rest else ""

    def take(self) -> str:
        if not self.rest:
            raise WhenError(f"when: {self.text!r} ends too early.")
        return self.rest.pop(0)

    def any_of(self) -> Test:
        parts = [self.all_of()]
        while self.peek() == "||":
            self.take()
            parts.append(self.all_of())
        return parts[0] if len(parts) == 1 else lambda facts: any(part(facts) for part in parts)

    def all_of(self) -> Test:
        parts = [self.single()]
        while self.peek() == "&&":
            self.take()
            parts.append(self.single())
        return parts[0] if len(parts) == 1 else lambda facts: all(part(facts) for part in parts)

    def single(self) -> Test:
        token = self.take()
        if token == "!":
            inner = self.single()
            return lambda facts: not inner(facts)
        if token == "(":
            inner = self.any_of()
            if self.take() != ")":
                raise WhenError(f"when: a bracket is left open in {self.text!r}.")
            return inner
        if not (token[0].isalnum() or token[0] == "_"):
            raise WhenError(f"when: {token!r} is out of place in {self.text!r}.")
        if self.peek() in ("==", "!="):
            same = self.take() == "=="
            wanted = self.take().strip("'")
            return lambda facts: (_as_text(facts.get(token)) == wanted) is same
        return lambda facts: bool(facts.get(token))


def _as_text(value: object) -> str:
    if value is None or value is False:
        return ""
    return "true" if value is True else str(value)


@cache
def parse_when(text: str) -> Test:
    """The expression as a test on facts; the empty expression always holds.

    Raises:
        WhenError: the text is no expression.
    """
    if not text.strip():
        return lambda facts: True
    reader = _WhenReader(text)
    test = reader.any_of()
    if reader.rest:
        raise WhenError(f"when: {reader.rest[0]!r} is out of place in {text!r}.")
    return test
