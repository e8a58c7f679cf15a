"""What a machine lacks is said before a run begins, in namespaces that really lack it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankdeck.base.errors import MachineError
from rankdeck.launch.machine import check_machine
from tests.helpers.tree import PRODUCT_AND_TESTS

_CHECK = """
from rankdeck.base.errors import MachineError
from rankdeck.launch.machine import check_machine
try:
    check_machine(1, meets=True)
except MachineError as error:
    print(error.problem.code, error.exit_code, error.message)
"""


_RACE = """
import tempfile
from pathlib import Path
from rankdeck.base.errors import MachineError
from rankdeck.launch.race import Racing
from rankdeck.launch.verifying import verifications
from rankdeck.planner.candidates import candidates_for
from tests.helpers.racing import asked
with tempfile.TemporaryDirectory() as folder:
    what = asked(Path(folder), ["single", "ddp"], devices="cpu:2")
    rows = candidates_for(what.config, "ddp", 2)
    for act in (lambda: Racing(what), lambda: [*verifications(what.config, rows, command_line=[])]):
        try:
            act()
        except MachineError as error:
            print(error.problem.code)
"""


def _said(*unshared: str, before: str = "true", code: str = _CHECK) -> str:
    """What the check says in a namespace of its own, after a command of the shell there."""
    own = ["unshare", "--user", "--map-root-user", *unshared]
    try:
        subprocess.run([*own, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("namespaces may not be made here")
    command = [*own, "sh", "-c", f'{before} && exec "$0" -P -c "$1"', sys.executable, code]
    environment = {**os.environ, "PYTHONPATH": PRODUCT_AND_TESTS}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_machine_that_has_all_is_told_nothing() -> None:
    check_machine(2, meets=True)


def test_without_loopback_nobody_meets() -> None:
    said = _said("--net")
    assert said.startswith("no-loopback 3 ") and "unreachable" in said


def test_a_race_and_a_verification_say_it_once_and_not_of_every_strategy() -> None:
    said = _said("--net", code=_RACE)
    assert said.splitlines() == ["no-loopback", "no-loopback"]


def test_without_proc_nothing_is_known_of_processes() -> None:
    said = _said("--mount", before="mount -t tmpfs none /proc")
    assert said.startswith("no-proc 3 ")


def test_a_folder_that_was_removed_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(MachineError, match="does not exist any more"):
        check_machine(1, meets=False)
    os.chdir(tmp_path)


def test_a_script_without_loopback_does_not_begin(tmp_path: Path) -> None:
    own = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        subprocess.run([*own, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("namespaces may not be made here")
    (tmp_path / "script.py").write_text("print('begun')\n")
    command = [*own, sys.executable, "-P", "-m", "rankdeck", "run", "--nproc-per-node", "2", "script.py"]
    environment = {**os.environ, "PYTHONPATH": PRODUCT_AND_TESTS, "RANKDECK_HOME": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 3 and "ip link set lo up" in done.stderr and "begun" not in done.stdout
