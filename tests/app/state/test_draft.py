"""The draft: its text is the truth, and every change is judged by the engine's own rules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck_app.state.draft import FROM_RUN, Draft

TEXT = """\
# what one learns here
[model]
use = "gpt"  # a transformer
args = { layers = 2, heads = 2 }

[train]
global_batch = 8
optimizer = { use = "adamw", lr = 3e-4, betas = [0.8, 0.9] }

[strategy]
use = "dp"
parallel_loss = true

[devices]
use = "cpu:4"
"""


@pytest.fixture
def draft(qtbot: QtBot, tmp_path: Path) -> Iterator[Draft]:
    draft = Draft(tmp_path / "draft.json", tmp_path)
    draft.replace(TEXT, folder=tmp_path, stem="gpt", origin="gpt-dp")
    yield draft
    draft.close()


def test_a_change_keeps_comments_and_the_rest_of_the_text(draft: Draft) -> None:
    draft.set_value(("train", "global_batch"), 16)
    assert draft.text == TEXT.replace("global_batch = 8", "global_batch = 16")
    assert draft.config is not None and draft.config.train.global_batch == 16


def test_a_value_that_makes_no_sense_is_kept_and_explained_with_path_and_line(draft: Draft) -> None:
    draft.set_value(("train", "steps"), "soon")
    assert draft.config is None
    (problem,) = draft.problems
    assert problem.path == "train.steps"
    assert (
        "whole number" in problem.message
        and problem.line == draft.text.splitlines().index('steps = "soon"') + 1
    )


def test_a_batch_that_does_not_divide_is_a_problem_of_the_batch(draft: Draft) -> None:
    draft.set_value(("train", "global_batch"), 6)
    assert [problem.path for problem in draft.problems] == ["train.global_batch"]
    assert draft.problems[0].advice == "Use 4 or 8."


def test_choosing_another_card_drops_only_the_options_that_it_does_not_have(draft: Draft) -> None:
    draft.choose(("strategy",), "ddp")
    assert "parallel_loss" not in draft.text and draft.config is not None
    draft.choose(("train", "optimizer"), "sgd")
    assert draft.value(("train", "optimizer")) == {"use": "sgd", "lr": 3e-4}
    draft.choose(("model",), "mlp")
    assert draft.value(("model", "args")) == {} and draft.config is not None


def test_a_strategy_written_as_a_word_becomes_a_table_when_an_option_is_set(
    draft: Draft, tmp_path: Path
) -> None:
    draft.replace('strategy = "dp"\n', folder=tmp_path, stem="x")
    draft.set_value(("strategy", "parallel_loss"), True)
    assert draft.value(("strategy",)) == {"use": "dp", "parallel_loss": True} and draft.config is not None


def test_text_that_is_no_toml_keeps_what_was_said_and_makes_way_for_the_form(
    qtbot: QtBot, draft: Draft
) -> None:
    broken = draft.text + "[train\n"
    draft.set_text(broken)
    assert not draft.is_toml and draft.problems[0].line == len(broken.splitlines())
    assert draft.value(("model", "use")) == "gpt"
    assert draft.config is not None and draft.is_settling
    with qtbot.waitSignal(draft.changed, timeout=5000):
        pass  # time to tell it
    assert not draft.is_settling and draft.problems
    with qtbot.waitSignal(draft.set_aside) as aside:
        draft.set_value(("train", "global_batch"), 16)
    assert draft.text == TEXT.replace("global_batch = 8", "global_batch = 16") and not draft.problems
    draft.bring_back(aside.args[0])
    assert draft.text == broken and draft.problems and not draft.is_settling


def test_after_a_restart_text_that_is_no_toml_shows_what_was_said_before(
    draft: Draft, tmp_path: Path
) -> None:
    draft.set_text(draft.text + "[train\n")
    draft.close()
    assert not (tmp_path / "draft.json").stat().st_mode & 0o077, "it may hold secrets"
    again = Draft(tmp_path / "draft.json", Path("/"))
    assert again.problems[0].code == "toml" and again.value(("train", "global_batch")) == 8
    assert not again.is_settling
    again.set_value(("train", "global_batch"), 16)
    assert again.text == TEXT.replace("global_batch = 8", "global_batch = 16")
    again.close()


def test_another_configuration_that_is_no_toml_shows_nothing_of_the_one_before(draft: Draft) -> None:
    draft.replace("[train\n", folder=draft.folder, stem="other")
    assert draft.problems[0].code == "toml" and draft.value(("model", "use")) is None


def test_the_draft_is_there_again_at_the_next_start(draft: Draft, tmp_path: Path) -> None:
    draft.set_value(("train", "steps"), 7)
    draft.close()
    again = Draft(tmp_path / "draft.json", Path("/"))
    assert again.is_restored
    assert (again.text, again.folder, again.stem, again.origin) == (draft.text, tmp_path, "gpt", "gpt-dp")
    assert again.config is not None and again.config.train.steps == 7


def test_a_draft_of_a_run_is_called_what_the_next_run_will_be_called(draft: Draft) -> None:
    assert (draft.title, draft.run_title) == ("gpt-dp", "gpt")
    draft.replace(f'name = ""\n{TEXT}', folder=draft.folder, stem="", origin=f"{FROM_RUN}before")
    assert draft.title == draft.run_title == "GPT · DP · 4" and draft.origin_in_words == "run before"
    draft.choose(("strategy",), "ddp")
    for wrong in ("soon", 5):
        draft.set_value(("train", "steps"), wrong)
        assert draft.title == "GPT · DDP · 4", "also while something is wrong"
    for name, title in (("mine", "mine"), (None, "GPT · DDP · 4")):
        draft.set_value(("name",), name)
        assert draft.title == title
    draft.choose(("strategy",), "single")
    assert draft.title == "GPT · Single"
    draft.replace("[train]\nsteps = -1\n", folder=draft.folder, stem="", origin=f"{FROM_RUN}other")
    assert draft.title == "run other" and not draft.run_title


def test_save_as_makes_the_file_and_moves_where_relative_paths_start(draft: Draft, tmp_path: Path) -> None:
    draft.set_value(("data",), {"use": "text", "args": {"path": "books"}})
    target = tmp_path / "deep" / "mine.toml"
    draft.save_as(target)
    assert target.read_text() == draft.text and draft.is_saved
    assert draft.config is not None and draft.config.data.args["path"] == str(tmp_path / "deep" / "books")
    draft.set_value(("train", "steps"), 3)
    assert not draft.is_saved


@pytest.mark.timeout(30)
def test_what_is_no_regular_file_is_not_opened_and_never_waited_for(draft: Draft, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    text, failed = draft.text, list[OSError]()
    for path in (tmp_path / "pipe.toml", Path("/dev/zero")):
        draft.open_file(path, lambda: None, failed.append)
    assert len(failed) == 2 and draft.text == text
