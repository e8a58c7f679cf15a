"""Which GPU a person may use: the one set of rules for the engine's choice of devices and for the app.

A GPU is usable where a rank could run on it, free where nobody computes on it, and `auto` takes what is both
and whole. Words about a refusal are said by whoever refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

OWN_BYTES = 2**30
"""Memory in use that no process accounts for: up to this much is the driver's and the display's."""


class GpuRefusal(Enum):
    """Why no run may take a GPU, not even one that names it."""

    SIMULATED = "simulated"
    LOST = "lost"
    TWIN = "twin"
    SPLIT = "split"
    HELD = "held"


@dataclass(frozen=True)
class Availability:
    """What the rules need to know of a GPU, or of a MIG instance of one.

    `is_twin`: nothing can tell it from another, because it tells the UUID of that, or none. `is_split`: into
    MIG instances, so that only these can be used. `held_by`: the directory of the run that holds it. `users`
    are (compute | graphics, bytes) of the processes that the driver names, bytes None where it does not tell
    them; None before it has been asked.
    """

    is_lost: bool = False
    is_twin: bool = False
    is_split: bool = False
    is_simulated: bool = False
    is_instance: bool = False
    held_by: str | None = None
    used_bytes: int | None = None
    users: Sequence[tuple[str, int | None]] | None = ()

    @property
    def hidden_bytes(self) -> int | None:
        """What is in use by nobody that the driver names (processes of other containers).

        None where nothing much is, where a process does not tell its bytes, and where it cannot be told: a
        split GPU's processes are named at its instances.
        """
        if self.used_bytes is None or self.is_split or self.users is None:
            return None
        known = [num_bytes for _, num_bytes in self.users if num_bytes is not None]
        rest = self.used_bytes - sum(known)
        return rest if len(known) == len(self.users) and rest > OWN_BYTES else None

    @property
    def refusal(self) -> GpuRefusal | None:
        """Why no run may take it, None where one may."""
        if self.is_simulated:
            return GpuRefusal.SIMULATED
        if self.is_lost:
            return GpuRefusal.LOST
        if self.is_twin:
            return GpuRefusal.TWIN
        if self.is_split:
            return GpuRefusal.SPLIT
        return GpuRefusal.HELD if self.held_by is not None else None

    @property
    def is_usable(self) -> bool:
        """Whether a rank could run on it, were it not for another run."""
        return self.refusal in (None, GpuRefusal.HELD)

    @property
    def is_for_all(self) -> bool:
        """Whether `gpu:all` means it: of MIG instances a run can use only one."""
        return self.is_usable and not self.is_instance

    @property
    def is_free(self) -> bool:
        """Whether it is there and nobody computes on it; windows and desktops are in nobody's way."""
        is_used = any(kind == "compute" for kind, _ in self.users or ()) or self.hidden_bytes is not None
        return not (self.is_lost or self.is_split or is_used) and self.held_by is None

    @property
    def is_for_auto(self) -> bool:
        """Whether `auto` takes it."""
        return self.is_for_all and self.is_free
