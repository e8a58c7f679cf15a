"""Hosts on one machine: each has a network, a name, processes, a home and an sshd of its own, and they are
joined by a switch. As root only, with iproute2, util-linux and, where ssh itself is tried, openssh-server.

A host is *killed* (all of it dies at once, and the kernel closes its connections) or *cut off* (nothing is
closed, nobody is told). Nothing has a name outside, and everything ends with the process that made it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from rankdeck.remote import ssh
from tests.helpers.checkout import PRODUCT
from tests.helpers.waiting import wait_until

_NET = "10.77.0"
_UNSHARE = ("unshare", "--kill-child", "--fork", "--net")
_HOST_NAMESPACES = ("--uts", "--ipc", "--pid", "--mount", "--mount-proc")
_REQUIRED_PROGRAMS = ("unshare", "nsenter", "ip", "ssh-keygen")
_SSH_PROGRAMS = ("ssh", "/usr/sbin/sshd")
_SLOW_WIRE = (sys.executable, "-SE", str(Path(__file__).with_name("slow_wire.py")))
_SSHD = """\
ListenAddress {address}
HostKey {folder}/key
AuthorizedKeysFile {folder}/authorized
UsePAM no
UseDNS no
PermitRootLogin prohibit-password
PasswordAuthentication no
PidFile none
StrictModes no
"""
_INIT = """\
set -e
hostname {name}
mount --bind {folder}/passwd /etc/passwd
mount --bind {switch}/hosts /etc/hosts
mount -t tmpfs tmpfs /dev/shm
mkdir -p {folder}/run/sshd
mount --bind {folder}/run /run
until ip link show eth0 >/dev/null 2>&1; do sleep 0.02; done
ip link set lo up
ip addr add {address}/24 dev eth0
ip link set eth0 up
cd {folder}/home
exec {reaper}
"""
_CLIENT = """\
Host *
 User root
 IdentityFile {folder}/key
 IdentitiesOnly yes
 UserKnownHostsFile {folder}/known_hosts
 StrictHostKeyChecking yes
"""
_RUN_SSHD = "/usr/sbin/sshd -D -e -f {folder}/sshd_config"
_NO_SSHD = "sh -c 'echo Server listening; while :; do sleep 1000 & wait; done'"
_ENTER = """\
#!/bin/sh
for word; do
  case "$word" in -O) exit 255 ;; box*) host=$word ;; esac
  last=$word
done
read pid address < {folder}/$host/there || exit 255
exec nsenter -t $pid -n -m -u -i -p --wd={folder}/$host/home env -i HOME={folder}/$host/home PATH="$PATH" \\
  SSH_CONNECTION="{desk} 1 $address 22" sh -c "$last"
"""
"""What stands in for ssh where there is no sshd: it goes through no network."""


def ssh_unavailable_reason() -> str:
    """Why hosts here are not reached by ssh itself; "" where they are."""
    missing = [name for name in _SSH_PROGRAMS if shutil.which(name) is None]
    return f"{', '.join(missing)} is missing" if missing else ""


def unavailable_reason() -> str:
    """Why there can be no hosts here; "" where there can."""
    if os.geteuid():
        return "only root may make namespaces"
    missing = [name for name in _REQUIRED_PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"{', '.join(missing)} is missing"
    tried = subprocess.run(
        [*_UNSHARE, *_HOST_NAMESPACES, "true"], capture_output=True, text=True, check=False
    )
    return tried.stderr.strip() if tried.returncode else ""


class NetworkHost:
    """One of them. `environment` is what a command here needs to reach it by its name."""

    def __init__(self, network: HostNetwork, name: str, address: str) -> None:
        self.name, self.address = name, address
        self._network = network
        self.folder = network.folder / name
        self.home = self.folder / "home"
        self.program = self.home / ".local" / "bin" / "rankdeck"
        self.program.parent.mkdir(parents=True)
        self.configure()
        _make_key(self.folder / "key", name)
        shutil.copy(network.folder / "key.pub", self.folder / "authorized")
        lines = Path("/etc/passwd").read_text().splitlines()
        root = f"root:x:0:0:root:{self.home}:/bin/sh"
        passwd_lines = [root if line.startswith("root:") else line for line in lines]
        (self.folder / "passwd").write_text("\n".join(passwd_lines) + "\n")
        facts = {"name": name, "address": address, "folder": self.folder, "switch": network.folder}
        (self.folder / "sshd_config").write_text(_SSHD.format(**facts))
        reaper = _NO_SSHD if ssh_unavailable_reason() else _RUN_SSHD.format(**facts)
        (self.folder / "init.sh").write_text(_INIT.format(**facts, reaper=reaper))
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    def configure(self, packages: Path | None = None, **environment: str) -> None:
        """What Rankdeck has there from now on: `packages` before its own, and this in its environment.

        Ranks have one thread each: with more, some processors add up in another order.
        """
        path = PRODUCT if packages is None else f"{packages}:{PRODUCT}"
        variables = {"OMP_NUM_THREADS": "1", **environment, "PYTHONPATH": path}
        lines = [f"export {name}={shlex.quote(value)}" for name, value in variables.items()]
        lines = ["#!/bin/sh", *lines, f'exec {sys.executable} -P -m rankdeck "$@"']
        self.program.write_text("\n".join(lines) + "\n")
        self.program.chmod(0o755)

    @property
    def pid(self) -> int:
        """Of its first process, as it is seen from here."""
        assert self._process is not None
        return psutil.Process(self._process.pid).children()[0].pid

    def boot(self) -> None:
        with (self.folder / "sshd.log").open("wb") as log:
            self._process = subprocess.Popen(
                [*_UNSHARE, *_HOST_NAMESPACES, "sh", str(self.folder / "init.sh")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ},
            )
        wait_until(lambda: psutil.Process(self._process.pid).children(), what=f"{self.name} to begin")
        self._network.plug_in(self)
        (self.folder / "there").write_text(f"{self.pid} {self.address}\n")
        wait_until(
            lambda: b"Server listening" in (self.folder / "sshd.log").read_bytes(), what=f"{self.name}'s sshd"
        )

    def power_off(self) -> None:
        """Its power goes."""
        if self._process is not None:
            (self.folder / "there").unlink(missing_ok=True)
            _kill(self._process)
            self._process = None

    def unplug(self) -> None:
        """Its cable is pulled."""
        self._network.run_at_switch("ip", "link", "set", self.name, "down")

    def plug_in(self) -> None:
        self._network.run_at_switch("ip", "link", "set", self.name, "up")

    def drop_large_packets(self) -> None:
        """From now on no frame of more than 1000 bytes comes to it or from it, and nobody is told."""
        _run_in_network(self.pid, *_SLOW_WIRE, "whole", "eth0")
        self._network.run_at_switch("ip", "link", "set", self.name, "mtu", "1000")

    def pass_large_packets(self) -> None:
        self._network.run_at_switch("ip", "link", "set", self.name, "mtu", "1500")

    def execute(self, *command: str) -> str:
        """What a command prints there."""
        clean = ["env", "-i", f"HOME={self.home}", f"PATH={os.environ['PATH']}"]
        enter = ["nsenter", "-t", str(self.pid), "-n", "-m", "-u", "-i", "-p", *clean]
        return subprocess.run([*enter, *command], check=True, capture_output=True, text=True).stdout


class HostNetwork:
    """Hosts by name. A command here reaches them with `environment`, from an address of its own."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        _make_key(folder / "key", "desk")
        self._switch = _empty_network()
        self._client: subprocess.Popen[bytes] | None = None
        self._slow_switch: subprocess.Popen[bytes] | None = None
        addresses = {name: f"{_NET}.{number}" for number, name in enumerate(names, 2)}
        (folder / "hosts").write_text(
            "".join(f"{address} {name}\n" for name, address in addresses.items()) + "127.0.0.1 localhost\n"
        )
        self.hosts = {name: NetworkHost(self, name, address) for name, address in addresses.items()}
        (folder / "known_hosts").write_text("".join(map(_known_hosts_line, self.hosts.values())))
        config = _CLIENT.format(folder=folder)
        config = (
            "".join(f"Host {host.name}\n HostName {host.address}\n" for host in self.hosts.values()) + config
        )
        (folder / "ssh_config").write_text(config)

    def up(self) -> None:
        wait_until(lambda: psutil.Process(self._switch.pid).children())
        self.run_at_switch("ip", "link", "add", "br0", "type", "bridge", "forward_delay", "0")
        self.run_at_switch("ip", "link", "set", "br0", "up")
        self._client = _empty_network()
        wait_until(lambda: psutil.Process(self._client.pid).children())
        self._join("desk", self._client_pid)
        for arguments in ("link set lo up", f"addr add {_NET}.1/24 dev eth0", "link set eth0 up"):
            _run_in_network(self._client_pid, "ip", *arguments.split())
        for host in self.hosts.values():
            host.boot()

    @property
    def _client_pid(self) -> int:
        assert self._client is not None
        return psutil.Process(self._client.pid).children()[0].pid

    @property
    def environment(self) -> dict[str, str]:
        """Only ssh itself is at the desk."""
        if ssh_unavailable_reason():
            program = self.folder / "ssh"
            program.write_text(_ENTER.format(folder=self.folder, desk=f"{_NET}.1"))
            program.chmod(0o755)
            return {ssh.SSH_ENV: str(program)}
        return {ssh.SSH_ENV: f"nsenter -t {self._client_pid} -n ssh -F {self.folder}/ssh_config"}

    def plug_in(self, host: NetworkHost) -> None:
        self._join(host.name, host.pid)

    def slow_down(self, delay_ms: int, loss_percent: float) -> None:
        """From now on what is sent comes so much later, or not at all."""
        pids = {"desk": self._client_pid, **{host.name: host.pid for host in self.hosts.values()}}
        for name, pid in pids.items():
            self.run_at_switch("ip", "link", "set", name, "nomaster")
            _run_in_network(self._switch_pid, *_SLOW_WIRE, "whole", name)
            _run_in_network(pid, *_SLOW_WIRE, "whole", "eth0")
        command = [*_SLOW_WIRE, "carry", str(delay_ms), str(loss_percent), *pids]
        self._slow_switch = subprocess.Popen(["nsenter", "-t", str(self._switch_pid), "-n", *command])

    def speed_up(self) -> None:
        """As it was."""
        if self._slow_switch is not None:
            self._slow_switch.kill()
            self._slow_switch.wait()
            self._slow_switch = None
            for name in ("desk", *self.hosts):
                self.run_at_switch("ip", "link", "set", name, "master", "br0")

    def _join(self, name: str, pid: int) -> None:
        # The same one after a reboot: others know it by then.
        mac_address = f"02:00:00:00:00:{1 + ['desk', *self.hosts].index(name):02x}"
        peer = ("peer", "name", "eth0", "address", mac_address, "netns", str(pid))
        self.run_at_switch("ip", "link", "add", name, "type", "veth", *peer)
        self.run_at_switch("ip", "link", "set", name, "master", "br0")
        self.run_at_switch("ip", "link", "set", name, "up")

    @property
    def _switch_pid(self) -> int:
        return psutil.Process(self._switch.pid).children()[0].pid

    def run_at_switch(self, *command: str) -> None:
        _run_in_network(self._switch_pid, *command)

    def down(self) -> None:
        self.speed_up()
        for host in self.hosts.values():
            ssh.close_shared_connection(host.name)
            host.power_off()
        for process in (self._client, self._switch):
            if process is not None:
                _kill(process)


def _empty_network() -> subprocess.Popen[bytes]:
    nothing = subprocess.DEVNULL
    return subprocess.Popen([*_UNSHARE, "sleep", "infinity"], stdin=nothing, stderr=nothing)


def _run_in_network(pid: int, *command: str) -> None:
    subprocess.run(["nsenter", "-t", str(pid), "-n", *command], check=True, capture_output=True)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The first process of its namespaces, which takes all others with it; `unshare` waits for that."""
    for child in psutil.Process(process.pid).children():
        child.kill()
    process.wait()


def _make_key(path: Path, comment: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path), "-C", comment], check=True
    )


def _known_hosts_line(host: NetworkHost) -> str:
    kind, key = (host.folder / "key.pub").read_text().split()[:2]
    return f"{host.name},{host.address} {kind} {key}\n"
