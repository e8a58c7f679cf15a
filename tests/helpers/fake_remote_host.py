"""A host that is this machine with a home of its own, reached through a relay in place of ssh. The relay can
be cut (nothing is closed, nothing comes) and ended (the pipe is closed).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from rankdeck.remote import ssh
from tests.helpers.checkout import PRODUCT
from tests.helpers.waiting import wait_until

_RELAY = '''\
#!{python} -SE
"""Starts what ssh is told to on this machine, and passes bytes on after `delay` seconds each way."""
import collections, os, select, subprocess, sys, time
folder, delay = {folder!r}, {delay!r}
if "-O" in sys.argv:  # about a connection that others share: there is none
    sys.exit(255)
environment = dict(os.environ, HOME=folder, RANKDECK_HOME=folder + "/home", PYTHONPATH={product!r})
environment.pop("RANKDECK_RUNS", None)
environment["PATH"] = folder + "/bin:" + environment["PATH"]
sys.stderr.write(open(folder + "/says").read() if os.path.exists(folder + "/says") else "")
if os.path.exists(folder + "/refuses"):
    sys.exit(255)
far = subprocess.Popen(["sh", "-c", sys.argv[-1]], cwd=folder, env=environment, bufsize=0,
                       stdin=subprocess.PIPE, stdout=subprocess.PIPE)
own = "%s/pids.%d" % (folder, os.getpid())  # two may begin at once
with open(own, "w") as file:
    file.write("%d %d" % (os.getpid(), far.pid))
os.rename(own, folder + "/pids")
ways = {{0: (far.stdin.fileno(), collections.deque()), far.stdout.fileno(): (1, collections.deque())}}
while True:
    waiting = [queue[0][0] - time.monotonic() for _, queue in ways.values() if queue]
    for end in select.select(list(ways), [], [], max(0, min(waiting, default=1)))[0]:
        data = os.read(end, 1 << 18)
        if not data and end:
            far.stdin.close()
            sys.exit(far.wait())
        ways[end][1].append((time.monotonic() + delay, data))
        if not data:
            del ways[end]
            far.stdin.close()
            sys.exit(far.wait())
    for to, queue in ways.values():
        while queue and queue[0][0] <= time.monotonic():
            data = queue.popleft()[1]
            while data:
                data = data[os.write(to, data):]
'''


class FakeRemoteHost:
    """`name` is how it is asked for; `environment` is what a command here needs to reach it."""

    def __init__(self, folder: Path, *, delay_s: float = 0.0, banner: str = "", version: str = "") -> None:
        self.name = "box1"
        self.home = folder / "far"
        (self.home / "bin").mkdir(parents=True)
        self.relay = folder / "relay"
        text = _RELAY.format(python=sys.executable, folder=str(self.home), delay=delay_s, product=PRODUCT)
        self.relay.write_text(text)
        self.relay.chmod(0o755)
        program = self.home / "bin" / "rankdeck"
        code = "from rankdeck.__main__ import main; main()"
        if version:
            code = f"import rankdeck; rankdeck.__version__ = '{version}'; {code}"
        start = f'exec {sys.executable} -P -c "{code}" "$@"'
        program.write_text(f"#!/bin/sh\nprintf '{banner}'\n{start}\n")
        program.chmod(0o755)
        self.environment = {ssh.SSH_ENV: str(self.relay)}

    @property
    def runs(self) -> Path:
        return self.home / "runs"

    def pids(self) -> tuple[int, int]:
        """Of the relay and of the far end, once both are there."""
        text = wait_until(lambda: (self.home / "pids").exists() and (self.home / "pids").read_text())
        relay, far = str(text).split()
        return int(relay), int(far)

    def refuse(self, reason: str) -> None:
        """From now on no connection comes about, for this reason."""
        (self.home / "says").write_text(reason)
        (self.home / "refuses").touch()

    def cut(self) -> None:
        os.kill(self.pids()[0], signal.SIGSTOP)

    def restore(self) -> None:
        os.kill(self.pids()[0], signal.SIGCONT)

    def end(self) -> None:
        """The connection, as when ssh is killed."""
        relay, _ = self.pids()
        (self.home / "pids").unlink()
        os.kill(relay, signal.SIGKILL)
