from __future__ import annotations

import pytest

from rankdeck_app.shell.fuzzy import fuzzy_match


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("str", "Run: Change Strategy"),
        ("spr", "View: Split Right"),
        ("view split", "View: Split Right"),
        ("TOGGLE", "View: Toggle Panel"),
        ("gpdp", "gpt-dp"),
    ],
)
def test_letters_at_word_starts_or_in_runs_match(query: str, text: str) -> None:
    assert fuzzy_match(query, text) is not None


@pytest.mark.parametrize(
    ("query", "text"), [("str", "View: Focus Next Part"), ("xyz", "View: Split"), ("run stop x", "Run: Stop")]
)
def test_letters_anywhere_do_not(query: str, text: str) -> None:
    assert fuzzy_match(query, text) is None


def test_a_whole_word_beats_initials_and_a_short_title_a_long_one() -> None:
    def score(text: str) -> int:
        match = fuzzy_match("stop", text)
        assert match is not None
        return match.score

    assert score("Run: Stop") > score("Show The Other Panel")
    assert score("Run: Stop") > score("Run: Stop All Ranks")


def test_the_places_are_those_of_the_letters() -> None:
    match = fuzzy_match("spr", "Split Right")
    assert match is not None and match.at == (0, 1, 6)
