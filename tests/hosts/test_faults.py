"""A share of `make host-faults`, and whether its judge sees what is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.host_network import HostNetwork
from tests.hosts import faults
from tests.hosts.faults import KINDS, Trials

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_told_right(
    network_of_three: HostNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if "clock" in kind and faults.FAKETIME is None:
        pytest.skip("libfaketime is missing")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    trial = Trials(network_of_three, tmp_path / "here").try_out(0, kind)
    assert not trial.wrong, trial


def test_the_judge_sees_another_host_and_what_is_left(
    network_of_three: HostNetwork, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faults, "GONE_S", 1.0)
    kind = faults.ENDS["a supervisor is killed"]
    wrong = faults.Kind(kind.act, "rank-killed", ("box9",))
    monkeypatch.setitem(faults.ENDS, "a supervisor is killed", wrong)
    box1 = network_of_three.hosts["box1"]
    box1.execute("bash", "-c", "(exec -a rankdeck sleep 30) >/dev/null 2>&1 & true")
    found = Trials(network_of_three, tmp_path / "here").try_out(0, "a supervisor is killed").wrong
    assert "code supervisor-lost" in found and any("'box9' is not told" in one for one in found)
    assert any(one.startswith("left on box1") for one in found)
