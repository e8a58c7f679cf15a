"""Pages of the docs are true: their commands run, their links lead somewhere, their references are current.

A page has fenced blocks. `sh` is run line by line in an empty folder. `sh skip` needs GPUs, hosts or a user,
so only its commands and options are checked. A `python` or `toml` block that begins with "# file: NAME" is a
file of that folder.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rankdeck.cli.app import COMMAND
from rankdeck.cli.torchrun import ScriptCommand, split_script_arguments
from tests.helpers.checkout import CHECKOUT
from tests.helpers.waiting import scale_timeout

PAGES = ["README.md", *sorted(f"docs/{page.name}" for page in (CHECKOUT / "docs").glob("*.md"))]
PYTHON_PAGE = "docs/python.md"
_BLOCK = re.compile(r"^```(\w+)( skip)?\n(.*?)^```", re.M | re.S)
_FILE = re.compile(r"# file: (\S+)\n")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_COMMAND_S = 120.0


def blocks_of(page: str) -> list[tuple[str, bool, str]]:
    """(language, whether it is skipped, text) of each fenced block."""
    text = (CHECKOUT / page).read_text("utf-8")
    return [(kind, bool(skip), body) for kind, skip, body in _BLOCK.findall(text)]


def commands_in(body: str) -> list[str]:
    lines = body.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


WITH_COMMANDS = [
    page for page in PAGES if any(kind == "sh" and not skip for kind, skip, _ in blocks_of(page))
]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_every_command_of_a_page_runs(page: str, tmp_path: Path) -> None:
    paths = (str(Path(sys.executable).parent), os.environ["PATH"])
    env = {**os.environ, "PATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    for kind, skip, body in blocks_of(page):
        if (name := _FILE.match(body)) is not None:
            (tmp_path / name[1]).write_text(body, encoding="utf-8")
        for line in commands_in(body) if kind == "sh" and not skip else ():
            done = subprocess.run(
                ["bash", "-c", line],
                cwd=tmp_path,
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=scale_timeout(_COMMAND_S),
                check=False,
            )
            assert done.returncode == 0, f"{page}: {line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"


@pytest.mark.parametrize("page", PAGES)
def test_every_command_of_a_page_exists_with_its_options(page: str) -> None:
    for kind, _, body in blocks_of(page):
        for line in commands_in(body) if kind == "sh" else ():
            words = shlex.split(line, comments=True)
            if "rankdeck" not in words:
                continue
            words = words[words.index("rankdeck") + 1 :]
            while words and words[0] in ("--host", "-C"):
                words = words[2:]
            if not words or words[0] in ("--help", "--version"):
                continue
            assert words[0] in COMMAND.commands, f"{page}: {line}"
            assert unknown_options(words) == [], f"{page}: {line}"


def unknown_options(words: list[str]) -> list[str]:
    """Options that a command does not have. Those that follow a script are the script's."""
    command = COMMAND.commands[words[0]]
    known_options = {"--help", "-h"}.union(*(parameter.opts for parameter in command.params))
    if isinstance(command, ScriptCommand):
        words = split_script_arguments(words[1:], command.value_options())[0]
    options = [word.partition("=")[0] for word in words if word.startswith("-")]
    return [
        word for word in options if word not in known_options and word.replace("_", "-") not in known_options
    ]


@pytest.mark.parametrize("page", PAGES)
def test_every_block_of_a_page_is_of_a_kind_that_is_checked(page: str) -> None:
    text = (CHECKOUT / page).read_text("utf-8")
    fences = re.findall(r"^```.*$", text, re.M)
    assert len(fences) == 2 * len(blocks_of(page))
    assert {kind for kind, _, _ in blocks_of(page)} <= {"sh", "python", "toml", "text", "json"}
    for kind, _, body in blocks_of(page):
        if kind == "python":
            compile(body, page, "exec")


def test_an_unknown_option_is_found() -> None:
    assert unknown_options(["train", "my.toml", "--devises", "cpu:2"]) == ["--devises"]
    assert unknown_options(["run", "train.py", "--lr", "0.1"]) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    file = CHECKOUT / page
    for target in _LINK.findall(re.sub(r"```.*?```|`[^`]*`", "", file.read_text("utf-8"), flags=re.S)):
        path, _, anchor = target.partition("#")
        if "://" in target:
            continue
        aimed = (file.parent / path).resolve() if path else file
        assert aimed.exists(), f"{page}: {target}"
        if anchor:
            assert anchor in anchors_of(aimed), f"{page}: {target}"


def anchors_of(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in heads}


def test_the_reference_pages_are_current() -> None:
    written = runpy.run_path(str(CHECKOUT / ".ci/pages.py"))["PAGES"]
    for name, page in written.items():
        text = (CHECKOUT / "docs" / name).read_text("utf-8")
        assert text == page().rstrip("\n") + "\n", f"docs/{name}: run `make pages`"


def test_the_readme_is_short_and_shows_own_code_early() -> None:
    lines = (CHECKOUT / "README.md").read_text("utf-8").splitlines()
    assert len(lines) <= 150
    assert lines.index("## Your own model and data") < len(lines) / 2


def test_the_examples_of_the_python_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = [body for kind, skip, body in blocks_of(PYTHON_PAGE) if kind == "python" and not skip]
    assert len(examples) >= 5
    names: dict[str, Any] = {}
    for number, example in enumerate(examples):
        exec(compile(example, f"{PYTHON_PAGE}, example {number + 1}", "exec"), names)
    printed = capsys.readouterr().out
    assert "completed " in printed and "does not divide into 2 equal parts" in printed
    assert "torch.Size([10, 256])" in printed
