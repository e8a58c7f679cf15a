"""The draft: its text is the truth, and every change is judged by the engine's own rules."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pytestqt.qtbot import QtBot

from rankdeck_app.state.draft import RUN_ORIGIN_PREFIX, Draft

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


def test_an_invalid_value_is_kept_and_its_problem_has_path_and_line(draft: Draft) -> None:
    draft.set_value(("train", "steps"), "soon")
    assert draft.config is None
    (problem,) = draft.problems
    assert problem.path == "train.steps"
    assert (
        "whole number" in problem.message
        and problem.line == draft.text.splitlines().index('steps = "soon"') + 1
    )


def test_an_indivisible_batch_is_a_problem_of_the_batch(draft: Draft) -> None:
    draft.set_value(("train", "global_batch"), 6)
    assert [problem.path for problem in draft.problems] == ["train.global_batch"]
    assert draft.problems[0].advice == "Use 4 or 8."


def test_choosing_another_spec_drops_only_unknown_options(draft: Draft) -> None:
    draft.choose(("strategy",), "ddp")
    assert "parallel_loss" not in draft.text and draft.config is not None
    draft.choose(("train", "optimizer"), "sgd")
    assert draft.value(("train", "optimizer")) == {"use": "sgd", "lr": 3e-4}
    draft.choose(("model",), "mlp")
    assert draft.value(("model", "args")) == {} and draft.config is not None


def test_setting_an_option_turns_a_strategy_string_into_a_table(draft: Draft, tmp_path: Path) -> None:
    draft.replace('strategy = "dp"\n', folder=tmp_path, stem="x")
    draft.set_value(("strategy", "parallel_loss"), True)
    assert draft.value(("strategy",)) == {"use": "dp", "parallel_loss": True} and draft.config is not None


def test_the_form_replaces_text_that_is_not_toml(qtbot: QtBot, draft: Draft) -> None:
    broken = draft.text + "[train\n"
    draft.set_text(broken)
    assert not draft.is_toml and draft.problems[0].line == len(broken.splitlines())
    assert draft.value(("model", "use")) == "gpt"
    assert draft.config is not None and draft.is_typing
    with qtbot.waitSignal(draft.changed, timeout=5000):
        pass  # time to tell it
    assert not draft.is_typing and draft.problems
    with qtbot.waitSignal(draft.text_discarded) as aside:
        draft.set_value(("train", "global_batch"), 16)
    assert draft.text == TEXT.replace("global_batch = 8", "global_batch = 16") and not draft.problems
    draft.restore_snapshot(aside.args[0])
    assert draft.text == broken and draft.problems and not draft.is_typing


def test_the_last_valid_toml_is_restored_after_a_restart(draft: Draft, tmp_path: Path) -> None:
    draft.set_text(draft.text + "[train\n")
    draft.close()
    assert not (tmp_path / "draft.json").stat().st_mode & 0o077, "it may hold secrets"
    again = Draft(tmp_path / "draft.json", Path("/"))
    assert again.problems[0].code == "toml" and again.value(("train", "global_batch")) == 8
    assert not again.is_typing
    again.set_value(("train", "global_batch"), 16)
    assert again.text == TEXT.replace("global_batch = 8", "global_batch = 16")
    again.close()


def test_another_invalid_configuration_clears_the_old_values(draft: Draft) -> None:
    draft.replace("[train\n", folder=draft.folder, stem="other")
    assert draft.problems[0].code == "toml" and draft.value(("model", "use")) is None


def test_the_draft_is_restored_at_the_next_start(draft: Draft, tmp_path: Path) -> None:
    draft.set_value(("train", "steps"), 7)
    draft.close()
    again = Draft(tmp_path / "draft.json", Path("/"))
    assert again.is_restored
    assert (again.text, again.folder, again.stem, again.origin) == (draft.text, tmp_path, "gpt", "gpt-dp")
    assert again.config is not None and again.config.train.steps == 7


def test_a_draft_of_a_run_has_the_title_of_the_next_run(draft: Draft) -> None:
    assert (draft.title, draft.run_title) == ("gpt-dp", "gpt")
    draft.replace(f'name = ""\n{TEXT}', folder=draft.folder, stem="", origin=f"{RUN_ORIGIN_PREFIX}before")
    assert draft.title == draft.run_title == "GPT · DP · 4" and draft.origin_text == "run before"
    draft.choose(("strategy",), "ddp")
    for wrong in ("soon", 5):
        draft.set_value(("train", "steps"), wrong)
        assert draft.title == "GPT · DDP · 4", "also while something is wrong"
    for name, title in (("mine", "mine"), (None, "GPT · DDP · 4")):
        draft.set_value(("name",), name)
        assert draft.title == title
    draft.choose(("strategy",), "single")
    assert draft.title == "GPT · Single"
    draft.replace("[train]\nsteps = -1\n", folder=draft.folder, stem="", origin=f"{RUN_ORIGIN_PREFIX}other")
    assert draft.title == "run other" and not draft.run_title


def test_save_as_writes_the_file_and_sets_the_base_folder(draft: Draft, tmp_path: Path) -> None:
    draft.set_value(("data",), {"use": "text", "args": {"path": "books"}})
    target = tmp_path / "deep" / "mine.toml"
    draft.save_as(target)
    assert target.read_text() == draft.text and draft.is_saved
    assert draft.config is not None and draft.config.data.args["path"] == str(tmp_path / "deep" / "books")
    draft.set_value(("train", "steps"), 3)
    assert not draft.is_saved


@pytest.mark.timeout(30)
def test_special_files_are_refused_without_blocking(draft: Draft, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    text, failed = draft.text, list[OSError]()
    for path in (tmp_path / "pipe.toml", Path("/dev/zero")):
        draft.open_file(path, lambda: None, failed.append)
    assert len(failed) == 2 and draft.text == text
