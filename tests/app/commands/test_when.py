from __future__ import annotations

import pytest

from rankdeck_app.commands.when import WhenError, parse_when

FACTS = {"a": True, "b": False, "kind": "run", "count": 0, "page.kind": "x"}


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("a", True),
        ("b", False),
        ("unknown", False),
        ("!b", True),
        ("!!a", True),
        ("a && b", False),
        ("a || b", True),
        ("b && a || a", True),
        ("b && (a || a)", False),
        ("kind == run", True),
        ("kind == 'run'", True),
        ("kind != run", False),
        ("unknown == ''", True),
        ("a == true", True),
        ("!(kind == plan) && a", True),
        ("page.kind", True),
        ("count", False),
    ],
)
def test_an_expression_reads_as_in_vs_code(text: str, holds: bool) -> None:
    assert parse_when(text)(FACTS) is holds


@pytest.mark.parametrize("text", ["a &&", "(a", "a b", "== x", "a ? b", "&& a"])
def test_what_is_no_expression_is_refused_with_its_text(text: str) -> None:
    with pytest.raises(WhenError, match="when:"):
        parse_when(text)
