"""Keep `import rankdeck.rundir` working: provide the contents of `rankdeck.run_dir` under their former
names."""

from __future__ import annotations

from rankdeck.run_dir import *  # noqa: F403
from rankdeck.run_dir import CLOCKS_FILE as CLOCKS
from rankdeck.run_dir import FIRST_STEPS_KEY as FIRST_STEPS
from rankdeck.run_dir import ORIGIN_FILE as ORIGIN
from rankdeck.run_dir import ClockOffsets as Clocks
from rankdeck.run_dir import (
    EventReader,
    Labels,
    RaceDir,
    RunDir,
)
from rankdeck.run_dir import ExitRecord as End
from rankdeck.run_dir import RunOrigin as HostedRun
from rankdeck.run_dir import add_to_index as enter_in_index
from rankdeck.run_dir import create_run_dir as create
from rankdeck.run_dir import find_foreign_entry as foreign_entry
from rankdeck.run_dir import parse_attempt as attempt_of
from rankdeck.run_dir import remove_unless_started as removed_unless_begun
from rankdeck.run_dir import write_request as put_request

__all__ = [
    "CLOCKS",
    "FIRST_STEPS",
    "ORIGIN",
    "Clocks",
    "End",
    "HostedRun",
    "attempt_of",
    "create",
    "enter_in_index",
    "foreign_entry",
    "put_request",
    "removed_unless_begun",
]

_FORMER_MEMBERS: dict[type, dict[str, str]] = {
    RunDir: {
        "config_to_go_on_with": "config_to_resume",
        "copied_from": "origin",
        "end": "exit_record",
        "file_of": "attempt_file",
        "here": "to_local_time",
        "own_title": "attempt_title",
    },
    RaceDir: {"asked": "request_file"},
    EventReader: {"names": "file_names", "next_of": "read_file"},
    Labels: {"changed": "with_changes"},
}
for _owner, _names in _FORMER_MEMBERS.items():
    for _old, _new in _names.items():
        setattr(_owner, _old, _owner.__dict__[_new])
