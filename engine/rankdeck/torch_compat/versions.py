"""Known versions of torch, and the warning for users of an unknown version.

Importing this module does not import torch; asking about an unknown version imports all of torch.
"""

from __future__ import annotations

import functools
import importlib
from importlib import metadata

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.torch_compat.private_api import CHECKED_VERSIONS, PrivateApi

MODULES = (
    "dispatch",
    "dtensors",
    "modules",
    "weight_metadata",
    "fake_tensors",
    "sparse",
    "fake_mode_patches",
    "ledger_hooks",
    "ddp",
    "fsdp",
    "collectives",
    "compiler",
    "pipelining",
    "processes",
)


def private_apis() -> list[PrivateApi]:
    """Return every private API that the engine uses."""
    modules = [importlib.import_module(f"rankdeck.torch_compat.{subject}") for subject in MODULES]
    return [api for module in modules for api in module.PRIVATE_APIS]


def is_known(version: str) -> bool:
    """Check whether a version such as "2.13.0+cu130" is a checked version or a patch release of one."""
    return _minor(version) in {_minor(checked) for checked in CHECKED_VERSIONS}


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.partition("+")[0].split(".")[:2])


_CHANGED_TEXT = tr_noop(
    "Rankdeck was not tested with torch {installed}, only with {checked}. Private APIs have "
    "changed, with these effects: {doubts}."
)
_UNCHANGED_TEXT = tr_noop(
    "Rankdeck was not tested with torch {installed}, only with {checked}. The private APIs "
    "that it uses seem unchanged."
)


@functools.cache
def version_problem(version: str | None = None) -> Problem | None:
    """Return a warning about the installed torch, or about `version`; None if the version is known."""
    try:
        # Read from metadata, so that a known torch costs no import.
        installed = metadata.version("torch") if version is None else version
    except metadata.PackageNotFoundError:
        return None  # torch was not installed by a package manager
    if is_known(installed):
        return None
    moved = [api for api in private_apis() if api.find_change() is not None]
    # Several APIs may share a consequence.
    doubts = "; ".join(dict.fromkeys(api.consequence for api in moved))
    template = _CHANGED_TEXT if moved else _UNCHANGED_TEXT
    # An event of the run and no Python warning: each rank would print one, and a dashboard shows none.
    return Problem(
        "torch-unknown",
        phrase(template, installed=installed, checked=", ".join(CHECKED_VERSIONS), doubts=doubts),
        advice=phrase("If a run fails or its results look wrong, install a tested version."),
        severity="warning",
    )
