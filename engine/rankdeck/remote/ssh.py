"""Reach hosts through the system's ssh.

Host names, addresses and users come from the user's ~/.ssh/config, and Rankdeck stores no copy of them. ssh
never prompts (BatchMode), and all commands on a host share one connection.
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
"""Environment variable with the command to run instead of `ssh`, like GIT_SSH_COMMAND."""
CONNECT_TIMEOUT_S = 20
"""Time limit for connecting, which may take ten seconds if the host is distant."""
_HOST_NAME = re.compile(r"[\w.@:%\[\]-]{1,255}", re.ASCII)
_KEEP_ALIVE = ("ServerAliveInterval=5", "ServerAliveCountMax=2")
_PERSIST_S = 30
"""Time for which an unused shared connection stays open."""
_CLOSE_TIMEOUT_S = 2.0
_MAX_FOLDER_LENGTH = 50
"""Maximum length of the path of the folder of sockets: a socket's path has at most 107 bytes, of which %C
takes 40 and the suffix that ssh adds temporarily takes 17."""
_SSH_ERROR = 255
"""Exit code of ssh for its own errors; every other code is that of the remote command."""
# A command that ssh runs does not have a login shell's PATH, so the likely places are tried, starting with
# the one that installer.py uses.
_SERVE_SCRIPT = """\
for r in "$RANKDECK" "$HOME/.local/share/rankdeck/bin/rankdeck" rankdeck "$HOME/.local/bin/rankdeck"; do
[ -n "$r" ] && command -v "$r" >/dev/null 2>&1 && exec "$r" serve --stdio; done; exit 127"""


def check_host_name(host: str) -> str:
    """Return the name if it is valid; ssh would interpret a name that starts with "-" as an option.

    Raises:
        ConfigError: the name is not a host name.
    """
    if _HOST_NAME.fullmatch(host) and not host.startswith("-"):
        return host
    raise ConfigError(
        phrase("{host} is not a host name.", host=repr(host[:80])),
        code="no-host",
        advice=phrase("Use a name that ssh knows, as in ~/.ssh/config, or user@address."),
    )


def is_local_host(host: str) -> bool:
    """Check whether the name refers to this host, which is used without ssh."""
    return host in ("localhost", platform.node())


def serve_command(host: str) -> list[str]:
    """Return the command that starts the server, the remote end of the pipe to the host."""
    if is_local_host(host):
        return [sys.executable, "-P", "-m", "rankdeck", "serve", "--stdio"]
    return shell_command(host, _SERVE_SCRIPT)


def shell_command(host: str, script: str, *arguments: str) -> list[str]:
    """Return the command that runs a POSIX shell script on the host, with `arguments` as the script's $1, $2
    and so on."""
    options = ["BatchMode=yes", f"ConnectTimeout={CONNECT_TIMEOUT_S}", *_KEEP_ALIVE]
    if (control := _control_path()) is not None:
        options += ["ControlMaster=auto", f"ControlPath={control}", f"ControlPersist={_PERSIST_S}"]
    flags = [word for option in options for word in ("-o", option)]
    return [
        *ssh_program(),
        "-T",
        *flags,
        check_host_name(host),
        # The user's login shell may be any shell; it only has to execute sh.
        shlex.join(["exec", "sh", "-c", script, "rankdeck", *arguments]),
    ]


def ssh_program() -> list[str]:
    """Return the ssh command, or the command that `SSH_ENV` names instead."""
    return shlex.split(os.environ.get(SSH_ENV, "")) or ["ssh"]


def close_shared_connection(host: str) -> None:
    """Close a shared connection that does not respond, so that the next command does not wait for it."""
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
    """Return a path for the socket of the shared connection; None if no private folder has a short enough
    path."""
    for parent in filter(None, (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/tmp")):
        folder = Path(parent) / f"rankdeck-ssh-{os.getuid()}"
        if len(os.fsencode(folder)) < _MAX_FOLDER_LENGTH and _is_private_folder(folder):
            return f"{folder}/%C"
    return None


def _is_private_folder(folder: Path) -> bool:
    """Create the folder if missing, and check that only this user can access it."""
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        # lstat, because in /tmp another user may have created a link with this name.
        status = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077


def connection_error(host: str, code: int | None, lines: Sequence[str]) -> MachineError:
    """Return the error for a failed connection, based on ssh's exit code and output lines."""
    output = "\n".join(lines)
    # The status of a shell for a missing command, with which _SERVE_SCRIPT exits too.
    if code == 127:
        return missing_rankdeck_error(host)
    why = lines[-1].strip(" .") if lines else phrase("no output")
    if code is not None and 0 < code < _SSH_ERROR:
        message = phrase(
            "rankdeck on {host} exited with status {code}: {why}.", host=host, code=code, why=why
        )
        advice = phrase(
            "Fix the error on the host, or reinstall Rankdeck: rankdeck --host {host} install", host=host
        )
        return MachineError(message, code="no-rankdeck", advice=advice)
    if "Permission denied" in output:
        message = phrase("{host} does not accept SSH logins without a prompt.", host=host)
        advice = phrase(
            "Install your key on the host (ssh-copy-id {host}), or add it to the SSH agent: ssh-add.",
            host=host,
        )
    elif "Host key verification failed" in output:
        message = phrase("The host key of {host} is unknown or has changed.", host=host)
        advice = phrase("Connect once manually and verify the key: ssh {host}", host=host)
    elif "Could not resolve hostname" in output:
        message = phrase("The host name {host} cannot be resolved.", host=host)
        advice = phrase("Correct the name, or add it to ~/.ssh/config.")
    elif "timed out" in output or "No route to host" in output or "Connection refused" in output:
        message = phrase("{host} cannot be reached: {why}.", host=host, why=why)
        advice = phrase("Check that the host is on, and that this works: ssh {host} true", host=host)
    else:
        message = phrase(
            "Could not connect to {host} (ssh exited with status {code}): {why}.",
            host=host,
            code=code,
            why=why,
        )
        advice = phrase("Check that this works: ssh {host} true", host=host)
    return MachineError(message, code="no-connection", advice=advice)


def missing_rankdeck_error(host: str, version: str | None = None) -> MachineError:
    """Return the error for a host without Rankdeck, or with another version, which may be incompatible."""
    message = phrase("rankdeck is not installed on {host}.", host=host)
    if version is not None:
        message = phrase(
            "{host} has rankdeck {there}, but this machine has {here}.",
            host=host,
            there=version[:40],
            here=rankdeck.__version__,
        )
    advice = phrase("Install it there: rankdeck --host {host} install", host=host)
    return MachineError(message, code="no-rankdeck", advice=advice)
