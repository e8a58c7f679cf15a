"""What a machine lacks is said before a run begins, in namespaces that really lack it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankdeck.base.errors import MachineError
from rankdeck.launch.machine import check_machine
from tests.helpers.checkout import PRODUCT_AND_TESTS

_CHECK = """
from rankdeck.base.errors import MachineError
from rankdeck.launch.machine import check_machine
try:
    check_machine(1, needs_loopback=True)
except MachineError as error:
    print(error.problem.code, error.exit_code, error.message)
"""


_RACE = """
import tempfile
from pathlib import Path
from rankdeck.base.errors import MachineError
from rankdeck.launch.race import RaceRunner
from rankdeck.launch.verification import verify_strategies
from rankdeck.planner.candidates import candidates_for
from tests.helpers.racing import race_request
with tempfile.TemporaryDirectory() as folder:
    what = race_request(Path(folder), ["single", "ddp"], devices="cpu:2")
    rows = candidates_for(what.config, "ddp", 2)
    for act in (lambda: RaceRunner(what), lambda: [*verify_strategies(what.config, rows, command_line=[])]):
        try:
            act()
        except MachineError as error:
            print(error.problem.code)
"""


def _run_check(*unshared: str, before: str = "true", code: str = _CHECK) -> str:
    """What the check says in a namespace of its own, after a command of the shell there."""
    prefix = ["unshare", "--user", "--map-root-user", *unshared]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("namespaces may not be made here")
    command = [*prefix, "sh", "-c", f'{before} && exec "$0" -P -c "$1"', sys.executable, code]
    environment = {**os.environ, "PYTHONPATH": PRODUCT_AND_TESTS}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_complete_machine_passes_the_checks() -> None:
    check_machine(2, needs_loopback=True)


def test_a_machine_without_loopback_is_refused() -> None:
    output = _run_check("--net")
    assert output.startswith("no-loopback 3 ") and "unreachable" in output


def test_races_and_verifications_check_the_machine_once() -> None:
    output = _run_check("--net", code=_RACE)
    assert output.splitlines() == ["no-loopback", "no-loopback"]


def test_a_machine_without_proc_is_refused() -> None:
    output = _run_check("--mount", before="mount -t tmpfs none /proc")
    assert output.startswith("no-proc 3 ")


def test_a_removed_current_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(MachineError, match="no longer exists"):
        check_machine(1, needs_loopback=False)
    os.chdir(tmp_path)


def test_a_script_without_loopback_does_not_start(tmp_path: Path) -> None:
    prefix = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        subprocess.run([*prefix, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("namespaces may not be made here")
    (tmp_path / "script.py").write_text("print('begun')\n")
    command = [*prefix, sys.executable, "-P", "-m", "rankdeck", "run", "--nproc-per-node", "2", "script.py"]
    environment = {**os.environ, "PYTHONPATH": PRODUCT_AND_TESTS, "RANKDECK_HOME": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=tmp_path, timeout=60
    )
    assert done.returncode == 3 and "ip link set lo up" in done.stderr and "begun" not in done.stdout
