"""Log the state changes of Rankdeck's own processes to stderr or to a file of the run, for Rankdeck's
developers.

Logging is off unless RANKDECK_LOG or `rankdeck --log-level` names a level. Each module has a logger with its
name, and no module logs during a step. This file imports only the standard library, because the guard uses
it.
"""

from __future__ import annotations

import enum
import os
import sys
from pathlib import Path

LOG_ENV = "RANKDECK_LOG"
FILE_NAME = "rankdeck.log"
_FORMAT = "%(asctime)s.%(msecs)03d %(process)d %(levelname).1s %(name)s: %(message)s"


class LogLevel(enum.StrEnum):
    """A level of log messages. The chosen level is the least severe one that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def enable(logs_folder: Path | None = None) -> None:
    """Write log messages of at least the level in RANKDECK_LOG to `logs_folder`/rankdeck.log, or to stderr if
    `logs_folder` is None.

    The processes of a run append to one file. Logging stays off if the variable does not name a level or the
    file cannot be opened: a run must not fail because of its log.
    """
    try:
        level = LogLevel(os.environ.get(LOG_ENV, "").lower())
    except ValueError:
        return
    import logging  # not at the start of a command that logs nothing

    try:
        handler: logging.Handler = (
            logging.StreamHandler(sys.stderr)
            if logs_folder is None
            else logging.FileHandler(logs_folder / FILE_NAME, encoding="utf-8")
        )
    except OSError:
        return
    handler.setFormatter(logging.Formatter(_FORMAT, "%H:%M:%S"))
    for package in ("rankdeck", "rankdeck_app"):
        logger = logging.getLogger(package)
        logger.setLevel(level.name)
        logger.handlers = [handler]
        logger.propagate = False
