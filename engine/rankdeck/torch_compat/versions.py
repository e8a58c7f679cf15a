"""Which versions of torch are known, and what a person is told who has another one.

Importing this imports no torch; asking about an unknown version imports all of it.
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
    """Every place that the engine touches."""
    modules = [importlib.import_module(f"rankdeck.torch_compat.{subject}") for subject in MODULES]
    return [place for module in modules for place in module.PRIVATE_APIS]


def is_known(version: str) -> bool:
    """Whether "2.13.0+cu130" is a version, or a patch of one, that every place was checked under."""
    return _minor(version) in {_minor(known) for known in CHECKED_VERSIONS}


def _minor(version: str) -> tuple[str, ...]:
    return tuple(version.partition("+")[0].split(".")[:2])


_CHANGED_TEXT = tr_noop(
    "torch {installed} is not one of the versions that this engine was checked with ({checked}). What has "
    "changed in it: {doubts}."
)
_UNCHANGED_TEXT = tr_noop(
    "torch {installed} is not one of the versions that this engine was checked with ({checked}). Nothing "
    "that it relies on seems to have moved."
)


@functools.cache
def version_problem(version: str | None = None) -> Problem | None:
    """A warning about the installed torch, or about `version` in its place; None where it is known."""
    try:
        installed = metadata.version("torch") if version is None else version
    except metadata.PackageNotFoundError:
        return None  # a torch that no package manager knows
    if is_known(installed):
        return None
    moved = [place for place in private_apis() if place.find_change() is not None]
    doubts = "; ".join(dict.fromkeys(place.consequence for place in moved))
    template = _CHANGED_TEXT if moved else _UNCHANGED_TEXT
    return Problem(
        "torch-unknown",
        phrase(template, installed=installed, checked=", ".join(CHECKED_VERSIONS), doubts=doubts),
        advice=phrase("If something fails or looks wrong, install one of those versions."),
        severity="warning",
    )
