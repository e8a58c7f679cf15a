"""Problems say what, where and what next."""

from __future__ import annotations

import msgspec
import pytest

from rankdeck.base.errors import (
    ConfigError,
    DataError,
    DeviceError,
    Evidence,
    MachineError,
    ModelError,
    Problem,
    RankdeckError,
    RunNotFoundError,
    TrainingError,
    did_you_mean,
    one_of,
)
from rankdeck.base.phrases import Phrase, phrase


def test_a_headline_names_the_file_and_the_line_inside_the_sentence() -> None:
    problem = Problem("x", "train.step is not an option.", line=8, advice="Leave it out.")
    assert problem.headline("run.toml") == "train.step is not an option (run.toml, line 8)."
    assert problem.text() == "train.step is not an option (line 8).\nLeave it out."


def test_a_line_that_the_message_names_itself_is_not_named_twice() -> None:
    problem = Problem(
        "x", "It raised ValueError (train.py, line 8). The script begins again (restart 1 of 2).", line=8
    )
    assert problem.headline() == problem.message


def test_a_headline_names_the_rank() -> None:
    assert Problem("x", "The loss is not finite.", rank=2).headline() == "rank 2: The loss is not finite."
    of_host = Problem("x", "It is gone.", rank=2, host="box1")
    assert of_host.headline() == "rank 2 on box1: It is gone."
    assert of_host.but(message="Rank 2 is gone.").headline() == "box1: Rank 2 is gone."


def _waiting(step: int) -> Phrase:
    return phrase("It waits {where}.", where=phrase("in step {step}", step=step))


def test_a_phrase_in_a_phrase_is_kept_by_its_place() -> None:
    problem = Problem("x", _waiting(3), advice=phrase("Use {known}.", known=one_of("abc")))
    assert problem.sentence == "It waits in step 3. Use a, b or c."
    assert problem.templates["message.where"] == "in step {step}"
    assert problem.arguments["message"] == {"where": "in step 3"}
    assert problem.arguments["message.where"] == {"step": 3}
    read = msgspec.json.decode(msgspec.json.encode(problem), type=Problem)
    assert read == problem
    again = read.said("message")
    assert isinstance(again, Phrase) and again == _waiting(3)
    assert Problem("x", again, advice=read.said("advice")) == problem
    assert not isinstance(Problem("x", "As it was.").said("message"), Phrase)


def test_evidence_is_kept_with_its_words_and_its_place() -> None:
    seen = Evidence(phrase("The last save is of step {step}.", step=40), "checkpoints/40/COMMIT", 3)
    problem = Problem("x", "It is late.", evidence=(seen, Evidence("Nothing else.")))
    assert [item.place for item in problem.evidence] == ["checkpoints/40/COMMIT:3", ""]
    assert problem.templates == {"evidence.0": "The last save is of step {step}."}
    read = msgspec.json.decode(msgspec.json.encode(problem), type=Problem)
    assert read == problem and read.but(evidence=()).templates == {}


def test_what_a_problem_said_before_is_forgotten_with_all_that_it_was_made_of() -> None:
    problem = Problem("x", _waiting(3), advice=phrase("Use {known}.", known=one_of("ab")))
    otherwise = problem.but(message="It is over.")
    assert set(otherwise.templates) == set(otherwise.arguments) == {"advice", "advice.known"}
    assert problem.but(message=_waiting(4)) == Problem("x", _waiting(4), advice=problem.said("advice"))


def test_a_headline_is_a_phrase_about_the_message() -> None:
    told = Problem("x", "It is wrong.", line=3, rank=1).headline("run.toml")
    assert told == "rank 1: It is wrong (run.toml, line 3)."
    assert isinstance(told, Phrase) and isinstance(told.arguments["message"], Phrase)


def test_an_error_without_problems_is_one_problem_itself() -> None:
    error = ConfigError("It is wrong.", advice="Mend it.", path="train.steps", line=3)
    assert error.problems == [Problem("config", "It is wrong.", "train.steps", 3, "Mend it.")]


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (ConfigError, 2),
        (DataError, 2),
        (ModelError, 2),
        (DeviceError, 2),
        (RunNotFoundError, 2),
        (MachineError, 3),
        (TrainingError, 1),
    ],
)
def test_every_kind_of_error_has_its_exit_code(kind: type[RankdeckError], code: int) -> None:
    assert kind("x").exit_code == code


def test_did_you_mean_finds_what_is_close_and_nothing_else() -> None:
    assert did_you_mean("Step", ["steps", "seed"]) == 'Did you mean "steps"?'
    assert did_you_mean("zzz", ["steps", "seed"]) is None


@pytest.mark.parametrize(
    ("words", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")]
)
def test_one_of_reads_as_a_sentence_does(words: list[str], text: str) -> None:
    assert one_of(words) == text
