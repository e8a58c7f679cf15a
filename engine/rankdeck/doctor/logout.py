"""Whether a run lives on when whoever started it logs out: systemd may end all that a session started.

Source: logind.conf(5), loginctl(1) enable-linger.
"""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path

from rankdeck.base import files
from rankdeck.base.phrases import phrase
from rankdeck.doctor.lines import CheckLine, Verdict, not_tried, row

_SMALL_BYTES = 1 << 20
_PLACES = ("usr/lib/systemd", "run/systemd", "etc/systemd")
"""Later ones count more."""


def look_at_logout(root: Path = Path("/"), user: str | None = None) -> Iterator[CheckLine]:
    if not (root / "run/systemd/system").is_dir():
        yield from not_tried(["logout"], phrase("No systemd runs here, which alone would end runs then."))
        return
    user = user or getpass.getuser()
    ends = _setting(root, "KillUserProcesses")
    lingers = (root / "var/lib/systemd/linger" / user).exists()
    evidence = [
        phrase("KillUserProcesses={value} (logind.conf)", value=ends or "no"),
        phrase("{user} lingers (/var/lib/systemd/linger)", user=user)
        if lingers
        else phrase("{user} does not linger (/var/lib/systemd/linger)", user=user),
    ]
    if (ends or "").lower() in ("yes", "true", "on", "1") and not lingers and user != "root":
        finding = phrase("Runs end when you log out, detached ones too.")
        fix = phrase("Let your processes stay.")
        command = "loginctl enable-linger"
        yield row("logout", Verdict.LOOK, finding, *evidence, fix=fix, command=command)
    else:
        yield row("logout", Verdict.GOOD, phrase("Runs go on when you log out."), *evidence)


def _setting(root: Path, name: str) -> str | None:
    """The value that counts, None where no file gives one."""
    value = None
    for place in _PLACES:
        for file in [root / place / "logind.conf", *sorted((root / place).glob("logind.conf.d/*.conf"))]:
            try:
                lines = files.read_text(file, _SMALL_BYTES).splitlines()
            except OSError:
                continue
            for line in lines:
                key, found, text = line.partition("=")
                if found and key.strip() == name:
                    value = text.strip()
    return value
