"""Starting the engine: the real command's words and exit codes, through a real process."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtCore import QObject
from pytestqt.qtbot import QtBot

from rankdeck_app.language import PSEUDO, remove_translators, use_language
from rankdeck_app.state.engine_process import (
    NOT_SHOWN_CODE,
    Engine,
    command_error_text,
    engine_environment,
    parse_problems,
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


def test_refusals_of_the_engine_are_translated(qtbot: QtBot, engine: Engine) -> None:
    call, answers = engine.stop(Path("/no/such/run")), list[tuple[int, str, str]]()
    call.finished.connect(lambda code, out, err: answers.append((code, out, err)))
    qtbot.waitUntil(lambda: bool(answers), timeout=WAIT_MS)
    [(code, out, err)] = answers
    english, made_up = command_error_text(out, err), use_language(PSEUDO)
    message = command_error_text(out, err)
    remove_translators(made_up)
    assert code == 2 and "run" in english and english != message and len(message) > len(english)
    assert command_error_text("", "it said this\n") == "it said this"


def test_a_refused_launch_reports_the_problems_of_the_engine(
    qtbot: QtBot, engine: Engine, tmp_path: Path
) -> None:
    text = '[train]\nsteps = "soon"\n[strategy]\nuse = "ddq"\n'
    launch = engine.launch("x", text, runs=tmp_path / "runs", workspace=tmp_path)
    with qtbot.waitSignal(launch.refused, timeout=WAIT_MS) as refused:
        pass
    assert {problem.path for problem in refused.args[0]} == {"train.steps", "strategy.use"}
    assert not list((tmp_path / "launch").iterdir())


def test_a_failed_start_names_the_python(qtbot: QtBot, engine: Engine, tmp_path: Path) -> None:
    engine.python = str(tmp_path / "no-such-python")
    with qtbot.waitSignal(
        engine.launch("x", "", runs=tmp_path, workspace=tmp_path).refused, timeout=WAIT_MS
    ) as refused:
        pass
    (problem,) = refused.args[0]
    assert "no-such-python" in problem.message and "engine.python" in (problem.advice or "")


def test_a_launch_can_be_cancelled_before_the_run_exists(
    qtbot: QtBot, engine: Engine, tmp_path: Path
) -> None:
    launch = engine.launch("slow", "", runs=tmp_path / "runs", workspace=tmp_path)
    with qtbot.waitSignal(launch.refused, timeout=WAIT_MS) as refused:
        launch.cancel()
    assert refused.args[0][0].code == "cancelled"


def test_problems_are_parsed_from_mixed_output() -> None:
    assert parse_problems("nothing to see") == []
    out = (
        'warning\n{"problems": [{"code": "a", "path": null, "line": null, "message": "m", "advice": "b"}]}\n'
    )
    (problem,) = parse_problems(out)
    assert (problem.code, problem.message, problem.advice, problem.path) == ("a", "m", "b", None)


def test_the_engine_is_this_python_by_default(engine: Engine) -> None:
    assert engine.python == sys.executable


_FAKE_ENGINE = """\
#!/bin/sh
case "$*" in
  *"--host box1 copy /there/run"*)
    echo '{"problems": [{"code": "no-copy", "message": "No space left here."}]}'; exit 3 ;;
  *) echo '{"host": "box1", "run": "run", "path": "/there/run"}' ;;
esac
"""


def test_a_remote_run_without_a_copy_is_not_reported_as_failed(
    qtbot: QtBot, engine: Engine, tmp_path: Path
) -> None:
    program = tmp_path / "python"
    program.write_text(_FAKE_ENGINE)
    program.chmod(0o755)
    engine.python = str(program)
    launch = engine.launch("Mine", "", runs=None, workspace=tmp_path)
    page = StartingPage("starting:1", launch)
    qtbot.addWidget(page)
    with qtbot.waitSignal(launch.refused, timeout=WAIT_MS) as refused:
        pass
    (problem,) = refused.args[0]
    assert problem.code == NOT_SHOWN_CODE
    assert problem.message == "Mine started on box1 but cannot be shown: No space left here."
    assert problem.advice == "Watch it in a terminal: rankdeck --host box1 watch run"
    assert page.title_label.text() == "Mine is running on another host" and not page.status_label.text()
