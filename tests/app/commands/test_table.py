from __future__ import annotations

import pytest

from rankdeck.base.phrases import phrase
from rankdeck_app.commands.table import Command, CommandTable, Context
from rankdeck_app.language import pseudolocalize


def test_a_command_runs_only_while_its_when_clause_is_true() -> None:
    context, ran = Context(), list[str]()
    table = CommandTable(context)
    table.register(Command("run.stop", "Run: Stop", lambda: ran.append("stop"), when="alive"))
    assert not table.run("run.stop")
    context.set("alive", True)
    assert table.run("run.stop")
    assert ran == ["stop"]
    assert table["run.stop"].label == "Stop"


@pytest.mark.usefixtures("made_up")
def test_a_translated_title_has_a_label() -> None:
    row = Command("view.group2", phrase("View: Focus Group {number}", number=2), lambda: None)
    assert row.title == "View: Focus Group 2"
    assert (row.display_title, row.label) == (
        pseudolocalize("View: Focus Group 2"),
        pseudolocalize("Focus Group 2"),
    )


def test_an_unknown_command_does_not_run() -> None:
    assert not CommandTable(Context()).run("no.such")


def test_signals_report_runs_and_registrations() -> None:
    table = CommandTable(Context())
    signals: list[str] = []
    table.ran.connect(signals.append)
    table.changed.connect(lambda: signals.append("changed"))
    table.register(Command("a.b", "A: B", lambda: None))
    table.run("a.b")
    assert signals == ["changed", "a.b"] and "a.b" in table


def test_a_batch_of_registrations_emits_one_signal() -> None:
    table = CommandTable(Context())
    counts: list[int] = []
    table.changed.connect(lambda: counts.append(len(list(table))))
    with table.batch_changes():
        table.register(Command("a.b", "A: B", lambda: None))
        table.register(Command("a.c", "A: C", lambda: None))
        assert "a.b" in table and not counts
    assert counts == [2]


def test_setting_an_equal_context_value_emits_no_signal() -> None:
    context, changes = Context(), list[set[str]]()
    context.changed.connect(changes.append)
    context.update({"a": 1, "b": 2})
    context.update({"a": 1, "b": 3})
    context.set("b", 3)
    assert changes == [{"a", "b"}, {"b"}]


def test_duplicate_ids_and_invalid_when_clauses_raise() -> None:
    table = CommandTable(Context())
    table.register(Command("a.b", "A: B", lambda: None))
    with pytest.raises(AssertionError, match="registered twice"):
        table.register(Command("a.b", "A: C", lambda: None))
    for when in ("a &&", "a b", "a ? b", "&& a", "a || b", "!"):
        with pytest.raises(AssertionError, match="when clause"):
            table.register(Command("a.c", "A: C", lambda: None, when=when))


@pytest.mark.parametrize(
    ("when", "applies"),
    [
        ("", True),
        ("a", True),
        ("b", False),
        ("unknown", False),
        ("!b", True),
        ("a && b", False),
        ("a && !b && !unknown", True),
        ("page.kind", True),
        ("count", False),
        ("!count", True),
    ],
)
def test_when_clauses_combine_keys_and_unknown_keys_are_false(when: str, applies: bool) -> None:
    context = Context()
    context.update({"a": True, "b": False, "count": 0, "page.kind": "x"})
    table = CommandTable(context)
    table.register(Command("a.b", "A: B", lambda: None, when=when))
    assert table.is_enabled("a.b") is applies
