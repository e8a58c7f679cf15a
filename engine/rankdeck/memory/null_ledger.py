"""The ledger of devices whose bytes nobody follows: GPUs, which count for themselves, and compiled graphs,
which run past it. It answers the calls of a Ledger and keeps nothing. Read ledger.py first.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar

from rankdeck.memory.entries import DeviceBytes
from rankdeck.memory.ledger import Ledger

_NO_SCOPE: AbstractContextManager[None] = nullcontext()


class NullLedger:
    """Follows nothing; see Ledger for what each call means."""

    can_follow: ClassVar[bool] = False
    is_following: ClassVar[bool] = False

    def _no_scope(self, *_: Any, **__: Any) -> AbstractContextManager[None]:
        return _NO_SCOPE

    following = paused = phase = on = crossing = _no_scope

    def _ignore(self, *_: Any, **__: Any) -> None:
        """Nothing is kept."""

    watch = adopt = relabel = end_phase = reset_peaks = crossed = _ignore

    def device_of(self, _: Any) -> int | None:
        return None

    def devices(self) -> list[DeviceBytes]:
        return []


AnyLedger = Ledger | NullLedger
