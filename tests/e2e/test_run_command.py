"""`rankdeck run` is as python would be: bytes, stdin, signals and exit status, on pipes and on a terminal.

The scripts need the standard library alone; what ranks of torch do is test_scripts.py's.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from rankdeck.run_dir import RunDir, list_runs
from tests.helpers.cli import RANKDECK, rankdeck, rankdeck_in_process
from tests.helpers.scripts import last_run
from tests.helpers.terminals import Terminal
from tests.helpers.waiting import scale_timeout, wait_until

RUN = [*RANKDECK, "run"]

REPORTING_SCRIPT = r"""
import os, sys
out, err = sys.stdout.buffer, sys.stderr.buffer
out.write(b"bytes \x00\xff\r 10%\r 20%\n"); out.flush()
err.write(b"on stderr \xfe\n"); err.flush()
print(sys.argv[1:], os.getcwd(), __name__, sys.stdout.isatty(), sys.stdin.isatty(), os.environ.get("EXTRA"))
print(sys.stdin.read().upper(), sys.prefix, sys.path[0])
out.write(b"no line feed at the end")
sys.stdout.flush()
sys.exit(3)
"""

SIGNAL_SCRIPT = """
import os, signal, sys, time
def note(number, frame):
    print(signal.Signals(number).name, flush=True)
    if number == signal.SIGTERM:
        sys.exit(7)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH):
    signal.signal(number, note)
print("ready", flush=True)
while True:
    time.sleep(0.05)
"""


def write_script(project: Path, text: str, name: str = "train.py") -> str:
    (project / name).write_text(text)
    return name


def test_a_script_behaves_as_under_python_in_its_environment(project: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", project / ".venv"], check=True)
    name = write_script(project, REPORTING_SCRIPT)
    arguments = [name, "--json", "", "a b", "--", "-m"]
    env = {**os.environ, "EXTRA": "1"}
    alone, ours = (
        subprocess.run(
            [*command, *arguments], input=b"typed", capture_output=True, cwd=project, env=env, check=False
        )
        for command in ([project / ".venv" / "bin" / "python"], RUN)
    )
    assert (ours.stdout, ours.returncode) == (alone.stdout, 3)
    assert str(project / ".venv").encode() in ours.stdout
    first, err, last = ours.stderr.partition(alone.stderr)
    assert err == alone.stderr
    version = ".".join(map(str, sys.version_info[:3]))
    run = last_run()
    python = project / ".venv" / "bin" / "python"
    assert first.decode() == f"python: {python} (.venv), Python {version}, no torch found; run: {run.path}\n"
    assert last.decode().splitlines()[0] == "train.py exited with status 3."
    assert last.decode().splitlines()[-1].startswith("failed with exit status 3 after ")
    assert last.decode().endswith(f"; rankdeck show {run.name}\n")
    assert (run.logs_folder / "rank-0.0.out").read_bytes() == alone.stdout
    assert (run.logs_folder / "rank-0.0.err").read_bytes() == alone.stderr
    assert run.outcome() == "failed"


def test_modules_and_programs_run_and_signals_set_the_exit_code(project: Path) -> None:
    (project / "package").mkdir()
    (project / "package" / "__init__.py").touch()
    write_script(
        project, "import os, sys; print(__name__, sys.argv[1:], os.environ['LEVEL'])", "package/train.py"
    )
    done = rankdeck("run", "--env", "LEVEL=3", "-m", "package.train", "-m", cwd=project, exit_code=0)
    assert done.out == "__main__ ['-m'] 3\n"
    done = rankdeck("run", "--no-python", "sh", "-c", "echo $0 $1 $RANK; kill -9 $$", "x", "y", cwd=project)
    assert (done.exit_code, done.out) == (128 + signal.SIGKILL, "x y 0\n")
    assert "failed with exit status 137" in done.err


INTERLEAVED_SCRIPT = """
import sys
for number in range(200):
    print("out", number, flush=True)
    print("err", number, file=sys.stderr)
import not_there
"""


def test_merged_stdout_and_stderr_stay_in_order(project: Path) -> None:
    name = write_script(project, INTERLEAVED_SCRIPT)
    alone = [word for number in range(200) for word in (f"out {number}", f"err {number}")]
    with open(project / "log", "wb") as log:
        subprocess.run([*RUN, name], cwd=project, stdout=log, stderr=log, check=False)
    lines = (project / "log").read_text().splitlines()
    assert lines[1 : 1 + len(alone)] == alone
    assert lines[-4].startswith("The script raised ModuleNotFoundError: No module named 'not_there'")
    assert lines[-3].startswith(
        f"The script ran with {sys.executable} (Rankdeck's own): install the module for that interpreter"
    )
    assert re.fullmatch(r"  \(logs/rank-0\.0\.out:\d+\)", lines[-2])
    with Terminal([*RUN, name], cwd=project) as terminal:
        assert terminal.wait() == 1
        assert terminal.output.decode().split("\r\n")[1 : 1 + len(alone)] == alone


def test_every_signal_is_forwarded_to_the_script(project: Path) -> None:
    name = write_script(project, SIGNAL_SCRIPT)
    with subprocess.Popen(
        [*RUN, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=project
    ) as command:
        assert command.stdout is not None and command.stderr is not None
        assert command.stdout.readline() == b"ready\n"
        for number in (
            signal.SIGINT,
            signal.SIGHUP,
            signal.SIGUSR1,
            signal.SIGUSR2,
            signal.SIGINT,
            signal.SIGTERM,
        ):
            command.send_signal(number)
            assert command.stdout.readline().decode() == f"{signal.Signals(number).name}\n"
        assert command.wait(scale_timeout(20)) == 7


def test_a_closed_stdout_stops_a_script_that_keeps_writing(project: Path) -> None:
    name = write_script(
        project, "import time\nwhile True:\n    print('line', flush=True)\n    time.sleep(0.005)\n"
    )
    with subprocess.Popen(
        [*RUN, name], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=project
    ) as command:
        assert command.stdout is not None and command.stderr is not None
        command.stdout.readline()
        command.stdout.close()
        assert command.wait(scale_timeout(30)) == 141
        assert command.stderr.read().count(b"\n") == 1
    assert last_run().outcome() == "stopped"


def test_output_lost_on_a_full_disk_is_reported(project: Path) -> None:
    name = write_script(project, "print('out', flush=True)")
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [*RUN, name], cwd=project, stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    run = last_run()
    assert done.returncode == 1 and run.outcome() == "completed"
    assert "can no longer be written to its destination: No space left on device." in done.stderr
    assert (run.logs_folder / "rank-0.0.out").read_text() == "out\n"


def test_closed_streams_stay_closed_and_non_utf_8_is_refused(project: Path) -> None:
    name = write_script(project, "import sys\nprint('out')\nprint('err', file=sys.stderr)\n")
    shell = subprocess.run(
        ["sh", "-c", '"$@" <&- >&- 2>&-', "sh", *RUN, name],
        cwd=project,
        capture_output=True,
        check=False,
    )
    assert (shell.returncode, shell.stdout, shell.stderr) == (0, b"", b"")
    assert (last_run().logs_folder / "rank-0.0.err").read_text() == "err\n"
    odd = subprocess.run([*RUN, name, b"\xff"], cwd=project, capture_output=True, check=False)
    assert odd.returncode == 2 and b"is not valid UTF-8" in odd.stderr


def test_run_json_prints_the_summary_and_logs_the_output(project: Path) -> None:
    name = write_script(project, "print('hello')")
    facts = rankdeck("run", "--json", "--name", "mine", name, "--json", cwd=project, exit_code=0).json
    run = last_run()
    assert (facts["run"], facts["outcome"], facts["steps"]) == (run.name, "completed", 0)
    assert "-mine-" in run.name and (run.logs_folder / "rank-0.0.out").read_text() == "hello\n"


def test_a_detached_script_is_stopped_and_run_again(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "import os, time\nprint('up', flush=True)\ntime.sleep(float(os.environ['SECONDS']))\n"
    (project / "rankdeck.toml").write_text(
        f'[scripts.long]\nrun = "{write_script(project, text)}"\nenvironment = {{ SECONDS = "60" }}\n'
    )
    path = Path(rankdeck("run", "--detach", "--entry", "long", cwd=project, exit_code=0).out.strip())
    run = last_run()
    assert run.path == path
    log = run.logs_folder / "rank-0.0.out"
    wait_until(
        lambda: log.exists() and log.read_text() == "up\n", deadline_s=30, what="the script's first line"
    )
    assert (
        "only the script itself can save its state"
        in rankdeck_in_process("checkpoint", run.name, exit_code=2).err
    )
    refused = rankdeck_in_process("resume", run.name, "--strategy", "ddp", exit_code=2).err
    assert "resume starts again, without changes" in refused
    refused = rankdeck_in_process("resume", run.name, "--detach", exit_code=2).err
    assert f"{run.name} is running." in refused and f"rankdeck stop {run.name}" in refused
    assert rankdeck("stop", run.name, exit_code=0).out == f"{run.name}: stopped\n"
    monkeypatch.chdir(project.parent)
    again = Path(rankdeck("resume", run.name, "--detach", exit_code=0).out.strip())
    assert again != path and len(list_runs(again.parent)) == 2
    assert RunDir(again).script() == run.script()
    rankdeck("stop", again, exit_code=0)
    assert not RunDir(again).is_alive()


TERMINAL_SCRIPT = """
import os, signal, sys
def resized(number, frame):
    size = os.get_terminal_size()
    print("now", size.columns, size.lines, flush=True)
def interrupted(number, frame):
    print("not yet", flush=True)
signal.signal(signal.SIGWINCH, resized)
signal.signal(signal.SIGINT, interrupted)
size = os.get_terminal_size()
print([stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr)], size.columns, size.lines)
name = input()
print(f"hello {name}!")
while (line := sys.stdin.readline()) != "end\\n":
    pass
sys.exit(4)
"""


def test_a_script_on_a_terminal_has_its_own_pty(project: Path) -> None:
    with Terminal([*RUN, write_script(project, TERMINAL_SCRIPT)], cwd=project) as terminal:
        before = terminal.modes()
        terminal.wait_for(rb"\[True, True, True\] 100 30\r\n")
        terminal.wait_until(lambda: not terminal.modes()[3] & termios.ICANON)
        terminal.type(b"Adx\x7fa\r")
        terminal.wait_for(rb"a\r\nhello Ada!\r\n")
        terminal.resize(40, 120)
        terminal.wait_for(rb"now 120 40\r\n")
        terminal.type(b"\x03")
        terminal.wait_for(rb"\^Cnot yet\r\n")
        terminal.type(b"\x1a")
        terminal.wait_until(lambda: bool(terminal.modes()[3] & termios.ICANON))
        terminal.wait_until(lambda: _process_state(terminal.pid) == "T")
        terminal.signal(signal.SIGCONT)
        terminal.wait_until(lambda: not terminal.modes()[3] & termios.ICANON)
        terminal.type(b"end\r")
        assert terminal.wait() == 4
        assert terminal.modes() == before


def _process_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_three_ctrl_c_end_a_script_that_ignores_sigint(project: Path) -> None:
    text = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    text += "print('up', flush=True)\ntime.sleep(60)\n"
    with Terminal([*RUN, write_script(project, text)], cwd=project) as terminal:
        terminal.wait_for(rb"up\r\n")
        terminal.wait_until(lambda: not terminal.modes()[3] & termios.ICANON)
        terminal.type(b"\x03\x03")
        terminal.type(b"\x03")
        assert terminal.wait() == 130
        assert terminal.modes()[3] & termios.ICANON
    assert last_run().outcome() == "stopped"
