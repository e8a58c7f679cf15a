"""What keeps a run over hosts from beginning: on one of them, each with its own reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.helpers.cli import rankdeck
from tests.helpers.host_network import HostNetwork, NetworkHost
from tests.helpers.host_runs import HostRun
from tests.helpers.waiting import wait_until

_END_TIMEOUT_S = 60.0
_IMPORT_BLOCKER = """\
import importlib.metadata as metadata
import sys

class Hiding:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "NAME":
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

sys.meta_path.insert(0, Hiding())
whole, every = metadata.Distribution.from_name, metadata.distributions

def from_name(name):
    if name == "NAME":
        raise metadata.PackageNotFoundError(name)
    return whole(name)

metadata.Distribution.from_name = from_name
metadata.distributions = lambda **more: [one for one in every(**more) if one.metadata["Name"] != "NAME"]
"""
"""Of a Python that has no such package."""


_MISSING_PACKAGES = {"torch is missing": "torch", "a package of Rankdeck's is missing": "msgspec"}
_EQUAL_HOSTNAMES = "equal hostnames"
REFUSED = ("another torch", *_MISSING_PACKAGES, _EQUAL_HOSTNAMES)


def run_refused_job(
    kind: str, network: HostNetwork, host: NetworkHost, folder: Path, job: Sequence[str], *, by_hand: bool
) -> tuple[str, tuple[str, ...]]:
    """What is said of such a host, and what has to be in it. `folder` is for what it has beside its own."""
    if kind == _EQUAL_HOSTNAMES:
        fragments = ("a host with that name has already joined", "RANKDECK_HOST=NAME")
        return _equal_hostnames(network, host, job), fragments
    folder.mkdir(parents=True)
    if kind in _MISSING_PACKAGES:
        (folder / "sitecustomize.py").write_text(_IMPORT_BLOCKER.replace("NAME", _MISSING_PACKAGES[kind]))
        fragments, by_hand = (host.name, _MISSING_PACKAGES[kind]), False
    else:
        facts = folder / "torch-2.12.1.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.12.1\n")
        fragments = ("torch", "2.12.1")
    host.configure(folder)
    try:
        return (_run_by_hand if by_hand else _run_from_client)(network, job), fragments
    finally:
        host.configure()


def _equal_hostnames(network: HostNetwork, host: NetworkHost, job: Sequence[str]) -> str:
    """What is said on a host that is called as the first one."""
    hosts = [*network.hosts.values()]
    host = hosts[1] if host is hosts[0] else host  # which has the name first
    host.execute("hostname", hosts[0].name)
    run = HostRun(hosts, *job)
    index = hosts.index(host)
    try:
        wait_until(lambda: run.commands[index].poll() is not None, deadline_s=_END_TIMEOUT_S)
        for other in hosts:
            other.execute("sh", "-c", "pkill -INT -f '[r]ankdeck train'; true")
        run.exit_codes(_END_TIMEOUT_S)
        return run.output_of(index)
    finally:
        host.execute("hostname", host.name)
        run.end()


def _run_from_client(network: HostNetwork, job: Sequence[str]) -> str:
    return rankdeck("train", *job, "--hosts", ",".join(network.hosts), exit_code=3).err


def _run_by_hand(network: HostNetwork, job: Sequence[str]) -> str:
    run = HostRun([*network.hosts.values()], *job)
    try:
        run.exit_codes(_END_TIMEOUT_S)
        return run.output_of(0)
    finally:
        run.end()
