"""The error of an operation that mixes virtual devices, which follower.py raises in rehearsals."""

from __future__ import annotations

from rankdeck.base.errors import TrainingError


class DeviceMixError(TrainingError):
    """One operation read tensors of two virtual devices; on GPUs it would have failed as well."""

    code = "device-mix"
