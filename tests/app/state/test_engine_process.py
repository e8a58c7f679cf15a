"""Starting the engine: the real command's words and exit codes, through a real process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from rankdeck_app.language import PSEUDO, forget, use_language
from rankdeck_app.state.engine_process import (
    NOT_SHOWN,
    Engine,
    engine_environment,
    parse_problems,
    refusal_of,
)
from rankdeck_app.views.starting import StartingPage

WAIT_MS = 30_000


@pytest.fixture
def engine(qtbot: QtBot, tmp_path: Path) -> Iterator[Engine]:
    parent = QObject()
    engine = Engine(tmp_path / "launch", parent)
    yield engine
    engine.close()


def test_the_engine_gets_no_qt_variable(qtbot: QtBot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QT_SCALE_FACTOR", "2")
    names = set(engine_environment().keys())
    assert "RANKDECK_HOME" in names and not any(name.startswith("QT_") for name in names)


def test_what_the_engine_refuses_is_said_in_the_windows_language(qtbot: QtBot, engine: Engine) -> None:
    call, answers = engine.stop(Path("/no/such/run")), list[tuple[int, str, str]]()
    call.answered.connect(lambda code, out, err: answers.append((code, out, err)))
    qtbot.waitUntil(lambda: bool(answers), timeout=WAIT_MS)
    [(code, out, err)] = answers
    english, made_up = refusal_of(out, err), use_language(PSEUDO)
    said = refusal_of(out, err)
    forget(made_up)
    assert code == 2 and "run" in english and english != said and len(said) > len(english)
    assert refusal_of("", "it said this\n") == "it said this"


def test_a_refused_launch_brings_the_engines_problems(qtbot: QtBot, engine: Engine, tmp_path: Path) -> None:
    text = '[train]\nsteps = "soon"\n[strategy]\nuse = "ddq"\n'
    launch = engine.launch("x", text, runs=tmp_path / "runs", workspace=tmp_path)
    with qtbot.waitSignal(launch.refused, timeout=WAIT_MS) as refused:
        pass
    assert {problem.path for problem in refused.args[0]} == {"train.steps", "strategy.use"}
    assert not list((tmp_path / "launch").iterdir())


def test_an_engine_that_cannot_start_says_which_python_was_tried(
    qtbot: QtBot, engine: Engine, tmp_path: Path
) -> None:
    engine.python = str(tmp_path / "no-such-python")
    with qtbot.waitSignal(
        engine.launch("x", "", runs=tmp_path, workspace=tmp_path).refused, timeout=WAIT_MS
    ) as refused:
        pass
    (problem,) = refused.args[0]
    assert "no-such-python" in problem.message and "engine.python" in (problem.advice or "")


def test_a_launch_can_be_cancelled_before_there_is_a_run(
    qtbot: QtBot, engine: Engine, tmp_path: Path
) -> None:
    launch = engine.launch("slow", "", runs=tmp_path / "runs", workspace=tmp_path)
    with qtbot.waitSignal(launch.refused, timeout=WAIT_MS) as refused:
        launch.cancel()
    assert refused.args[0][0].code == "cancelled"


def test_problems_are_found_among_other_words() -> None:
    assert parse_problems("nothing to see") == []
    out = (
        'warning\n{"problems": [{"code": "a", "path": null, "line": null, "message": "m", "advice": "b"}]}\n'
    )
    (problem,) = parse_problems(out)
    assert (problem.code, problem.message, problem.advice, problem.path) == ("a", "m", "b", None)


def test_the_engine_is_this_python_by_default(engine: Engine) -> None:
    assert engine.python == sys.executable


_BEGINS = """\
#!/bin/sh
case "$*" in
  *"--host box1 copy /there/run"*)
    echo '{"problems": [{"code": "no-copy", "message": "No space left here."}]}'; exit 3 ;;
  *) echo '{"host": "box1", "run": "run", "path": "/there/run"}' ;;
esac
"""


def test_a_run_that_has_begun_elsewhere_and_cannot_be_copied_is_not_said_to_have_failed(
    qtbot: QtBot, engine: Engine, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text(_BEGINS)
    program.chmod(0o755)
    engine.python = str(program)
    launch = engine.launch("Mine", "", runs=None, workspace=tmp_path)
    page = StartingPage("starting:1", launch)
    qtbot.addWidget(page)
    with qtbot.waitSignal(launch.refused, timeout=WAIT_MS) as refused:
        pass
    (problem,) = refused.args[0]
    assert problem.code == NOT_SHOWN
    assert problem.message == "Mine runs on box1, and cannot be shown: No space left here."
    assert problem.advice == "See it in a terminal: rankdeck --host box1 watch run"
    assert page.title_label.text() == "Mine runs elsewhere" and not page.status.text()
