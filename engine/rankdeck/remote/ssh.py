"""The system's own ssh: what a host is called, how it is reached and who one is there, says the person's
~/.ssh/config. Nothing is stored here, no question is asked (BatchMode), and one connection carries
everything.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import stat
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import rankdeck
from rankdeck.base.errors import ConfigError, MachineError
from rankdeck.base.phrases import phrase

SSH_ENV = "RANKDECK_SSH"
"""In the environment: what is run in place of `ssh`, with arguments of its own; as GIT_SSH_COMMAND."""
CONNECT_TIMEOUT_S = 20
"""A host that is far away needs ten."""
_HOST_NAME = re.compile(r"[\w.@:%\[\]-]{1,255}", re.ASCII)
_KEEP_ALIVE = ("ServerAliveInterval=5", "ServerAliveCountMax=2")
_PERSIST_S = 30
"""So long a connection is kept that others may share; it ends by itself then."""
_CLOSE_TIMEOUT_S = 2.0
_MAX_FOLDER_LENGTH = 50
"""%C has 40 bytes, and ssh adds 17 while it makes the socket."""
_SSH_ERROR = 255
"""What ssh ends with where it has failed itself: every other code is that of the command there."""
# A login's PATH is not that of a command that ssh starts: it is looked for where one is likely to be, first
# where `install` (installer.py) puts it.
_SERVE_SCRIPT = """\
for r in "$RANKDECK" "$HOME/.local/share/rankdeck/bin/rankdeck" rankdeck "$HOME/.local/bin/rankdeck"; do
[ -n "$r" ] && command -v "$r" >/dev/null 2>&1 && exec "$r" serve --stdio; done; exit 127"""


def check_host_name(host: str) -> str:
    """Raises: ConfigError, no host can be called so: ssh would take it for an option."""
    if _HOST_NAME.fullmatch(host) and not host.startswith("-"):
        return host
    raise ConfigError(
        phrase("{host} is no name of a host.", host=repr(host[:80])),
        code="no-host",
        advice=phrase("Use a name that ssh knows, as in ~/.ssh/config, or user@address."),
    )


def is_local_host(host: str) -> bool:
    """Whether it is this one: no ssh leads to it."""
    return host in ("localhost", platform.node())


def serve_command(host: str) -> list[str]:
    """What starts the far end of the pipe."""
    if is_local_host(host):
        return [sys.executable, "-P", "-m", "rankdeck", "serve", "--stdio"]
    return shell_command(host, _SERVE_SCRIPT)


def shell_command(host: str, script: str, *arguments: str) -> list[str]:
    """What runs a script of the plainest shell there; $1 is the first of the arguments."""
    options = ["BatchMode=yes", f"ConnectTimeout={CONNECT_TIMEOUT_S}", *_KEEP_ALIVE]
    if (control := _control_path()) is not None:
        options += ["ControlMaster=auto", f"ControlPath={control}", f"ControlPersist={_PERSIST_S}"]
    words = [word for option in options for word in ("-o", option)]
    return [
        *ssh_program(),
        "-T",
        *words,
        check_host_name(host),
        shlex.join(["exec", "sh", "-c", script, "rankdeck", *arguments]),
    ]


def ssh_program() -> list[str]:
    """ssh, or what stands in its place."""
    return shlex.split(os.environ.get(SSH_ENV, "")) or ["ssh"]


def close_shared_connection(host: str) -> None:
    """End the connection that others share: it does not answer, and whoever used it next would wait too."""
    control = _control_path()
    if control is None:
        return
    try:
        subprocess.run(
            [*ssh_program(), "-o", f"ControlPath={control}", "-O", "exit", host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_CLOSE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        pass


def _control_path() -> str | None:
    """For the socket of a connection that others may share; a path of sockets has 107 bytes at most."""
    for parent in filter(None, (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")):
        folder = Path(parent) / f"rankdeck-ssh-{os.getuid()}"
        if len(os.fsencode(folder)) < _MAX_FOLDER_LENGTH and _is_private_folder(folder):
            return f"{folder}/%C"
    return None


def _is_private_folder(folder: Path) -> bool:
    """Made where it is not there; nobody else may look into it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def connection_error(host: str, code: int | None, said: Sequence[str]) -> MachineError:
    """Why no connection came about: ssh ended with `code`, and wrote these lines."""
    words = "\n".join(said)
    if code == 127:
        return missing_rankdeck_error(host)
    why = said[-1].strip(" .") if said else phrase("it said nothing")
    if code is not None and 0 < code < _SSH_ERROR:
        message = phrase("rankdeck on {host} ended with {code}: {why}.", host=host, code=code, why=why)
        advice = phrase("Mend that there, or install anew: rankdeck --host {host} install", host=host)
        return MachineError(message, code="no-rankdeck", advice=advice)
    if "Permission denied" in words:
        message = phrase("{host} does not let you in without a question.", host=host)
        advice = phrase(
            "Add your key there (ssh-copy-id {host}), or unlock it for the agent: ssh-add.", host=host
        )
    elif "Host key verification failed" in words:
        message = phrase("The key of {host} is not known here, or has changed.", host=host)
        advice = phrase("Connect once by hand and compare it: ssh {host}", host=host)
    elif "Could not resolve hostname" in words:
        message = phrase("There is no host called {host}.", host=host)
        advice = phrase("Correct the name, or enter it in ~/.ssh/config.")
    elif "timed out" in words or "No route to host" in words or "Connection refused" in words:
        message = phrase("{host} cannot be reached: {why}.", host=host, why=why)
        advice = phrase("See whether it is on, and whether this works: ssh {host} true", host=host)
    else:
        message = phrase(
            "No connection to {host} (ssh ended with {code}): {why}.", host=host, code=code, why=why
        )
        advice = phrase("See whether this works: ssh {host} true", host=host)
    return MachineError(message, code="no-connection", advice=advice)


def missing_rankdeck_error(host: str, version: str | None = None) -> MachineError:
    """There is none there, or one of another version, which may not understand this one."""
    message = phrase("There is no rankdeck on {host}.", host=host)
    if version is not None:
        message = phrase(
            "{host} has rankdeck {there}, and this is {here}.",
            host=host,
            there=version[:40],
            here=rankdeck.__version__,
        )
    advice = phrase("Install it there: rankdeck --host {host} install", host=host)
    return MachineError(message, code="no-rankdeck", advice=advice)
