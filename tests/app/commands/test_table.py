from __future__ import annotations

import pytest

from rankdeck.base.phrases import phrase
from rankdeck_app.commands.table import Command, CommandTable, Context
from rankdeck_app.language import pseudo


def test_a_command_runs_only_while_its_when_holds() -> None:
    context, ran = Context(), list[str]()
    table = CommandTable(context)
    table.register(Command("run.stop", "Run: Stop", lambda: ran.append("stop"), when="alive"))
    assert not table.run("run.stop")
    context.set("alive", True)
    assert table.run("run.stop")
    assert ran == ["stop"]
    assert table["run.stop"].label == "Stop"


@pytest.mark.usefixtures("made_up")
def test_a_title_has_its_label_in_another_language_too() -> None:
    row = Command("view.group2", phrase("View: Focus Group {number}", number=2), lambda: None)
    assert row.title == "View: Focus Group 2"
    assert (row.shown, row.label) == (pseudo("View: Focus Group 2"), pseudo("Focus Group 2"))


def test_an_unknown_command_does_not_run() -> None:
    assert not CommandTable(Context()).run("no.such")


def test_who_listens_hears_what_ran_and_what_came() -> None:
    table = CommandTable(Context())
    heard: list[str] = []
    table.ran.connect(heard.append)
    table.changed.connect(lambda: heard.append("changed"))
    table.register(Command("a.b", "A: B", lambda: None))
    table.run("a.b")
    assert heard == ["changed", "a.b"] and "a.b" in table


def test_what_comes_together_is_told_once_at_the_end() -> None:
    table = CommandTable(Context())
    told: list[int] = []
    table.changed.connect(lambda: told.append(len(list(table))))
    with table.together():
        table.register(Command("a.b", "A: B", lambda: None))
        table.register(Command("a.c", "A: C", lambda: None))
        assert "a.b" in table and not told
    assert told == [2]


def test_setting_an_equal_fact_is_silent() -> None:
    context, heard = Context(), list[set[str]]()
    context.changed.connect(heard.append)
    context.update({"a": 1, "b": 2})
    context.update({"a": 1, "b": 3})
    context.set("b", 3)
    assert heard == [{"a", "b"}, {"b"}]


def test_a_second_row_of_one_id_and_a_broken_when_are_errors_of_ours() -> None:
    table = CommandTable(Context())
    table.register(Command("a.b", "A: B", lambda: None))
    with pytest.raises(AssertionError, match="registered twice"):
        table.register(Command("a.b", "A: C", lambda: None))
    for when in ("a &&", "a b", "a ? b", "&& a", "a || b", "!"):
        with pytest.raises(AssertionError, match="when:"):
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
def test_facts_are_joined_and_an_unknown_one_does_not_hold(when: str, applies: bool) -> None:
    context = Context()
    context.update({"a": True, "b": False, "count": 0, "page.kind": "x"})
    table = CommandTable(context)
    table.register(Command("a.b", "A: B", lambda: None, when=when))
    assert table.enabled("a.b") is applies
