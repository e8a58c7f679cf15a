"""Whether a host has lost its own connection, in a network that it really loses."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from rankdeck.launch.peers import is_interface_down
from tests.helpers.checkout import PRODUCT_AND_TESTS

_ASK = "from rankdeck.launch.peers import is_interface_down; print(is_interface_down('10.9.9.1'))"
_FAILURES = (
    "ip addr add 10.9.9.1/24 dev lo",
    "ip link set lo up",
    "ip addr del 10.9.9.1/24 dev lo",
    "ip link add one type veth peer name two && ip addr add 10.9.9.1/24 dev one && ip link set one up",
    "ip link set two up",
)


def test_a_lost_interface_carrier_or_address_is_detected() -> None:
    prefix = ["unshare", "--user", "--map-root-user", "--net"]
    try:
        subprocess.run([*prefix, "ip", "link"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("namespaces may not be made here")
    script = "\n".join(f'{way} && "$0" -SPc "$1"' for way in _FAILURES)
    done = subprocess.run(
        [*prefix, "sh", "-c", script, sys.executable, _ASK],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": PRODUCT_AND_TESTS},
    )
    assert done.stdout.split() == ["True", "False", "True", "True", "False"], done.stderr
    assert not is_interface_down("127.0.0.1")
