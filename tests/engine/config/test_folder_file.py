"""rankdeck.toml: read with all of its problems at once, written without losing a person's words."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.config.folder_file import FOLDER_FILE, ScriptEntry, add_entry, read_folder_file, remove_entry

TEXT = """\
# Ours.
[run]
python = ".venv"   # the project's

[scripts.small]   # quick
run = "train.py"
args = ["--lr", "1e-3"]   # a good rate
ranks = 2

[scripts."two words"]
run = "pkg.train"
kind = "module"
devices = "gpu:0,2"
environment = { A = "b" }
"""


def write_folder_file(folder: Path, text: str) -> Path:
    (folder / FOLDER_FILE).write_text(text)
    return folder


def test_interpreter_and_entries_are_read(tmp_path: Path) -> None:
    folder_file = read_folder_file(write_folder_file(tmp_path, TEXT))
    assert folder_file.python == ".venv" and folder_file.folder == tmp_path
    assert folder_file.entry("small") == ScriptEntry(run="train.py", args=["--lr", "1e-3"], ranks=2)
    assert folder_file.entry("two words").environment == {"A": "b"}


def test_a_folder_without_the_file_has_no_entries(tmp_path: Path) -> None:
    assert (read_folder_file(tmp_path).python, read_folder_file(tmp_path).entries) == (None, {})
    with pytest.raises(ConfigError, match=r"has no rankdeck\.toml") as refused:
        read_folder_file(tmp_path).entry("small")
    assert refused.value.advice == "Specify a script, or create the file with a [scripts.small] table."
    with pytest.raises(ConfigError, match='no entry "small"') as refused:
        read_folder_file(write_folder_file(tmp_path, "[run]\n")).entry("small")
    assert refused.value.advice == "Add [scripts.small] to the file."


def test_a_misspelt_entry_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        read_folder_file(write_folder_file(tmp_path, TEXT)).entry("smal")
    assert refused.value.advice == 'Did you mean "small"?'


def test_all_problems_of_the_file_are_reported_with_lines(tmp_path: Path) -> None:
    text = """\
[script.small]
run = "a.py"
[run]
pyton = "x"
[scripts.a]
ranks = 0
"""
    with pytest.raises(ConfigError) as refused:
        read_folder_file(write_folder_file(tmp_path, text))
    assert refused.value.file == str(tmp_path / FOLDER_FILE)
    assert [(problem.line, problem.path) for problem in refused.value.problems] == [
        (1, "script"),
        (4, "run.pyton"),
    ]
    advice = [problem.advice for problem in refused.value.problems]
    assert (
        advice[0]
        == 'Did you mean "scripts"? Write entries as [scripts.NAME], and specify the interpreter in [run].'
    )
    assert advice[1] == 'Did you mean "python"?'


def test_an_invalid_entry_does_not_break_the_others(tmp_path: Path) -> None:
    text = """\
[scripts.fine]
run = "fine.py"
[scripts.a]
args = "--lr"
ranks = 0
[scripts.b]
run = "b.py"
devices = "cpu:2"
ranks = 3
[scripts.c]
run = "c.py"
devices = "gpus"
observe = "lite"
"""
    folder_file = read_folder_file(write_folder_file(tmp_path, text))
    assert folder_file.entry("fine").run == "fine.py" and list(folder_file.entries) == ["fine"]
    with pytest.raises(ConfigError) as refused:
        folder_file.entry("a")
    assert refused.value.file == str(tmp_path / FOLDER_FILE)
    assert [(problem.line, problem.path) for problem in refused.value.problems] == [
        (3, "scripts.a.run"),
        (4, "scripts.a.args"),
        (5, "scripts.a.ranks"),
    ]
    positions = {
        name: [(problem.line, problem.path) for problem in wrong]
        for name, wrong in folder_file.problems_by_entry.items()
    }
    assert (positions["b"], positions["c"]) == ([(9, "scripts.b.ranks")], [(13, "scripts.c.observe")])
    assert (
        folder_file.problems_by_entry["c"][0].advice
        == 'Did you mean "light"? Use none, light, full or check.'
    )
    path = tmp_path / FOLDER_FILE
    note = folder_file.entry_warning(except_entry="a")
    assert (
        note == f"cpu:2 means 2 ranks, but the requested number of ranks is 3 ({path}, line 9). "
        "The entry is ignored. Further problems: 1."
    )
    assert read_folder_file(write_folder_file(tmp_path, TEXT)).entry_warning() is None


@pytest.mark.parametrize("text", ['devices = "gpus"', 'devices = "cpu:0"'])
def test_devices_of_an_entry_are_checked(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        read_folder_file(write_folder_file(tmp_path, f'[scripts.c]\nrun = "c.py"\n{text}\n')).entry("c")
    assert refused.value.problem.line == 3


@pytest.mark.parametrize("text", ["[run", "scripts = 3\n", "scripts.a = 3\n", "run = 1\n"])
def test_an_invalid_rankdeck_toml_is_refused_and_not_overwritten(tmp_path: Path, text: str) -> None:
    write_folder_file(tmp_path, text)
    with pytest.raises(ConfigError):
        read_folder_file(tmp_path).entry("a")
    if text.startswith(("[run", "scripts = 3")):
        with pytest.raises(ConfigError):
            add_entry(tmp_path, "a", ScriptEntry(run="a.py"))
        assert (tmp_path / FOLDER_FILE).read_text() == text


def test_comments_survive_adding_changing_and_removing_entries(tmp_path: Path) -> None:
    write_folder_file(tmp_path, TEXT)
    entry = ScriptEntry(run="train.py", args=["--lr", "1e-3"], observe="full")
    add_entry(tmp_path, "small", entry)
    add_entry(tmp_path, "new", ScriptEntry(run="a b.py", environment={"X": 'q"'}))
    assert read_folder_file(tmp_path).entry("small") == entry
    for args in (["--lr", "0"], ["--lr", "2"]):  # before and behind what stands there
        add_entry(tmp_path, "small", entry.model_copy(update={"args": args}))
        assert read_folder_file(tmp_path).entry("small").args == args
    assert read_folder_file(tmp_path).entry("new").environment == {"X": 'q"'}
    text = (tmp_path / FOLDER_FILE).read_text()
    assert "# Ours." in text and "# the project's" in text and "# a good rate" in text and "ranks" not in text
    remove_entry(tmp_path, "small")
    remove_entry(tmp_path, "new")
    remove_entry(tmp_path, "never there")
    assert list(read_folder_file(tmp_path).entries) == ["two words"]
    remove_entry(tmp_path, "two words")
    assert "scripts" not in (tmp_path / FOLDER_FILE).read_text()


def test_a_folder_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / FOLDER_FILE).mkdir()
    with pytest.raises(ConfigError, match="cannot be read"):
        remove_entry(tmp_path, "small")
