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
    format_choices,
)
from rankdeck.base.phrases import Phrase, phrase


def test_a_headline_names_the_file_and_the_line_inside_the_sentence() -> None:
    problem = Problem("x", "train.step is not an option.", line=8, advice="Leave it out.")
    assert problem.headline("run.toml") == "train.step is not an option (run.toml, line 8)."
    assert problem.text() == "train.step is not an option (line 8).\nLeave it out."


def test_a_line_in_the_message_is_not_repeated() -> None:
    problem = Problem(
        "x", "It raised ValueError (train.py, line 8). The script starts again (restart 1 of 2).", line=8
    )
    assert problem.headline() == problem.message


def test_a_headline_names_the_rank() -> None:
    assert Problem("x", "The loss is not finite.", rank=2).headline() == "rank 2: The loss is not finite."
    of_host = Problem("x", "It is gone.", rank=2, host="box1")
    assert of_host.headline() == "rank 2 on box1: It is gone."
    assert of_host.replace_fields(message="Rank 2 is gone.").headline() == "box1: Rank 2 is gone."


def _waiting_phrase(step: int) -> Phrase:
    return phrase("It waits {where}.", where=phrase("in step {step}", step=step))


def test_nested_phrases_are_stored_by_path() -> None:
    problem = Problem("x", _waiting_phrase(3), advice=phrase("Use {known}.", known=format_choices("abc")))
    assert problem.sentence == "It waits in step 3. Use a, b or c."
    assert problem.templates["message.where"] == "in step {step}"
    assert problem.arguments["message"] == {"where": "in step 3"}
    assert problem.arguments["message.where"] == {"step": 3}
    read = msgspec.json.decode(msgspec.json.encode(problem), type=Problem)
    assert read == problem
    again = read.as_phrase("message")
    assert isinstance(again, Phrase) and again == _waiting_phrase(3)
    assert Problem("x", again, advice=read.as_phrase("advice")) == problem
    assert not isinstance(Problem("x", "As it was.").as_phrase("message"), Phrase)


def test_evidence_is_stored_with_its_template_and_location() -> None:
    evidence = Evidence(phrase("The last save is of step {step}.", step=40), "checkpoints/40/COMMIT", 3)
    problem = Problem("x", "It is late.", evidence=(evidence, Evidence("Nothing else.")))
    assert [item.location for item in problem.evidence] == ["checkpoints/40/COMMIT:3", ""]
    assert problem.templates == {"evidence.0": "The last save is of step {step}."}
    read = msgspec.json.decode(msgspec.json.encode(problem), type=Problem)
    assert read == problem and read.replace_fields(evidence=()).templates == {}


def test_replacing_a_message_drops_its_templates() -> None:
    problem = Problem("x", _waiting_phrase(3), advice=phrase("Use {known}.", known=format_choices("ab")))
    otherwise = problem.replace_fields(message="It is over.")
    assert set(otherwise.templates) == set(otherwise.arguments) == {"advice", "advice.known"}
    assert problem.replace_fields(message=_waiting_phrase(4)) == Problem(
        "x", _waiting_phrase(4), advice=problem.as_phrase("advice")
    )


def test_a_headline_is_a_phrase_about_the_message() -> None:
    headline = Problem("x", "It is wrong.", line=3, rank=1).headline("run.toml")
    assert headline == "rank 1: It is wrong (run.toml, line 3)."
    assert isinstance(headline, Phrase) and isinstance(headline.arguments["message"], Phrase)


def test_an_error_without_problems_makes_one_of_itself() -> None:
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


def test_did_you_mean_suggests_close_words_only() -> None:
    assert did_you_mean("Step", ["steps", "seed"]) == 'Did you mean "steps"?'
    assert did_you_mean("zzz", ["steps", "seed"]) is None


@pytest.mark.parametrize(
    ("choices", "text"), [([], ""), (["a"], "a"), (["a", "b"], "a or b"), (["a", "b", "c"], "a, b or c")]
)
def test_choices_are_joined_with_commas_and_or(choices: list[str], text: str) -> None:
    assert format_choices(choices) == text
