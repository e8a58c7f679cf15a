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
def test_letters_match_at_word_starts_and_in_sequences(query: str, text: str) -> None:
    assert fuzzy_match(query, text) is not None


@pytest.mark.parametrize(
    ("query", "text"), [("str", "View: Focus Next Part"), ("xyz", "View: Split"), ("run stop x", "Run: Stop")]
)
def test_scattered_letters_do_not_match(query: str, text: str) -> None:
    assert fuzzy_match(query, text) is None


def test_whole_words_and_short_titles_score_higher() -> None:
    def score(text: str) -> int:
        match = fuzzy_match("stop", text)
        assert match is not None
        return match.score

    assert score("Run: Stop") > score("Show The Other Panel")
    assert score("Run: Stop") > score("Run: Stop All Ranks")


def test_positions_are_those_of_the_matched_letters() -> None:
    match = fuzzy_match("spr", "Split Right")
    assert match is not None and match.positions == (0, 1, 6)
