"""Sentences keep what they were made of on every way out of the process."""

from __future__ import annotations

import copy
import math
import pickle

import msgspec
import pytest

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import Phrase, join_phrases, phrase, plural_phrase, tr_noop


def test_a_phrase_survives_pickling_and_copying() -> None:
    message = phrase("{who} broke: {why}", who="Rank 1", why=phrase("it is {what}", what="gone"))
    for other in (pickle.loads(pickle.dumps(message)), copy.deepcopy(message)):
        assert other == "Rank 1 broke: it is gone" and other.template == message.template
        assert isinstance(inner := other.arguments["why"], Phrase) and inner.template == "it is {what}"


def test_a_pickled_error_keeps_its_phrases() -> None:
    error = ConfigError(phrase("{name} is wrong.", name="a"), advice=phrase("Use {b}.", b=2))
    other = pickle.loads(pickle.dumps(error))
    assert other.problems == error.problems and other.message.template == "{name} is wrong."
    assert other.problem.templates == {"message": "{name} is wrong.", "advice": "Use {b}."}


@pytest.mark.parametrize("value", [math.nan, -math.inf, 10**400])
def test_non_finite_arguments_survive_json(value: float) -> None:
    problem = Problem("x", phrase("train.clip_norm = {value}", value=value))
    assert msgspec.json.decode(msgspec.json.encode(problem), type=Problem) == problem
    assert problem.message == f"train.clip_norm = {value}"


def test_joined_phrases_stay_phrases() -> None:
    phrases = [phrase("{name} failed", name=name) for name in ("a", "b", "c")]
    joined_phrase = join_phrases(phrases, tr_noop("{before}; {one}"))
    assert joined_phrase == "a failed; b failed; c failed"
    problem = Problem("x", phrase("It is so: {parts}.", parts=joined_phrase))
    assert problem.templates["message.parts.before.one"] == "{name} failed"
    assert (join_phrases(["a", "b"]), join_phrases(["a"]), join_phrases([])) == ("a, b", "a", "")


def test_a_count_of_one_uses_the_singular() -> None:
    phrases = [plural_phrase("{who} has 1 file.", "{who} has {n} files.", n, who="He") for n in (0, 1, 2)]
    assert phrases == ["He has 0 files.", "He has 1 file.", "He has 2 files."]
    assert phrases[1].template == "{who} has 1 file." and phrases[2].arguments == {"n": 2, "who": "He"}
