"""Every test that is marked gpu, as far as there is time; in a dry run all of them are found, and skipped.

Only files with the mark are read, without the project's own options for pytest: what the other tests import
(Qt, plugins) need not be there.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator

from tests.gpu.part import Part
from tests.helpers.checkout import CHECKOUT

_MARK = re.compile(r"\bmark\.gpu\b")
_OUTCOME = re.compile(r"^(?:\[.*?\] )?(?:(\S+::.+?) )?(PASSED|FAILED|ERROR|SKIPPED|XFAIL)\b")
_OPTIONS = (
    *("-m", "gpu", "-v", "-rs", "--tb=short", "--no-header", "-p", "no:cacheprovider"),
    *("--import-mode=importlib", "-o", "addopts=", "-o", "filterwarnings=", "-W", "ignore"),
)


def files() -> list[str]:
    """Test files with the mark, from the checkout's root."""
    paths = sorted((CHECKOUT / "tests").rglob("test_*.py"))
    return [str(file.relative_to(CHECKOUT)) for file in paths if _MARK.search(file.read_text("utf-8"))]


def measure(part: Part) -> None:
    """The part `suite`. stdout of pytest goes into the log."""
    part.header = ["test", "outcome"]
    totals: dict[str, int] = {}
    command = [sys.executable, "-m", "pytest", *_OPTIONS, *files()]
    for line in _lines(part, command):
        match = _OUTCOME.match(line)
        if match is None or match[1] is None:
            continue
        totals[match[2]] = totals.get(match[2], 0) + 1
        part.row(match[1], match[2].lower())
        if match[2] in ("FAILED", "ERROR"):
            part.fail(f"{match[1]}: {match[2].lower()}; see {part.log.name}.")
        elif match[2] == "SKIPPED" and not part.dry_run:
            part.leave_out(f"{match[1]}: skipped, see {part.log.name}.")
    counts = ", ".join(f"{count} {outcome.lower()}" for outcome, count in sorted(totals.items()))
    part.figure(f"Tests marked gpu, in {len(files())} files: {counts or 'none ran'}.")
    if not totals:
        part.fail(f"no test ran; see {part.log.name}.")


def _ended(running: subprocess.Popen[bytes]) -> None:
    """pytest is given a moment to end what its tests have started."""
    try:
        running.wait(5.0)
    except subprocess.TimeoutExpired:
        running.kill()


def _lines(part: Part, command: list[str]) -> Iterator[str]:
    """What pytest prints, as long as there is time."""
    with (
        part.log.open("a") as log,
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=CHECKOUT,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        ) as running,
        selectors.DefaultSelector() as selector,
    ):
        assert running.stdout is not None
        selector.register(running.stdout, selectors.EVENT_READ)
        buffer = b""
        while True:
            if not selector.select(max(0.0, part.left_s)):
                running.send_signal(signal.SIGINT)
                part.leave_out("what pytest had not come to: no time left.")
                _ended(running)
                return
            chunk = os.read(running.stdout.fileno(), 1 << 16)
            if not chunk:
                return
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                log.write(line.decode(errors="replace") + "\n")
                log.flush()
                yield line.decode(errors="replace")
