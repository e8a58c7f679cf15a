"""A share of `make host-faults`, and whether its judge sees what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.host_network import HostNetwork
from tests.hosts import faults
from tests.hosts.faults import KINDS, TrialRunner

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
def test_every_fault_is_reported_correctly(
    network_of_three: HostNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if "clock" in kind and faults.FAKETIME is None:
        pytest.skip("libfaketime is missing")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    trial = TrialRunner(network_of_three, tmp_path / "here").run_trial(0, kind)
    assert not trial.wrong, trial


def test_the_trial_check_detects_a_wrong_report_and_leftovers(
    network_of_three: HostNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "EXIT_TIMEOUT_S", 1.0)
    kind = faults.FATAL_FAULTS["a supervisor is killed"]
    wrong = faults.FatalFault(kind.inject, "rank-killed", ("box9",))
    monkeypatch.setitem(faults.FATAL_FAULTS, "a supervisor is killed", wrong)
    box1 = network_of_three.hosts["box1"]
    box1.execute("bash", "-c", "(exec -a rankdeck sleep 30) >/dev/null 2>&1 & true")
    mistakes = TrialRunner(network_of_three, tmp_path / "here").run_trial(0, "a supervisor is killed").wrong
    assert "code supervisor-lost" in mistakes and any("'box9' is not told" in mistake for mistake in mistakes)
    assert any(mistake.startswith("left on box1") for mistake in mistakes)
