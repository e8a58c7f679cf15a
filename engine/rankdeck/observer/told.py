"""What a script tells of itself, by its loggers or by `rankdeck.log`, on its way into the run's events.

Read metrics.py before; loggers.py and log.py bring the values.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .metrics import MetricsBook
from .readings import Scalars, modes_on
from .session import current

if TYPE_CHECKING:
    from .session import RankSession

PART = "loggers"
_PLACES = 1 << 14
_books: dict[int, MetricsBook] = {}


class _OffCpu:
    """Reads tensors that lie elsewhere than on a CPU."""

    def __init__(self) -> None:
        self._scalars: Any = None

    def read(self, value: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None or not isinstance(value, torch.Tensor) or modes_on(torch):
            return None
        if value.is_complex() or value.dtype is torch.bool:
            return None
        if self._scalars is None:
            self._scalars = Scalars(torch, _PLACES)
        return self._scalars.read(value.detach().as_subclass(torch.Tensor))


def book_of(session: RankSession) -> MetricsBook:
    """The book of this process, which the session's thread empties into events."""
    book = _books.get(id(session))
    if book is None:
        book = _books[id(session)] = MetricsBook(session.logs, lambda: session.step, _OffCpu().read)

        def flush() -> None:
            for fields in book.take(session.ending):
                session.emit("metric", **fields)

        session.on_tick.append(session.guarded(PART, flush))
        session.on_fork.append(book.forget)
        session.book = book
    return book


def take(values: Any, named: dict[str, Any], step: Any) -> None:
    """What `rankdeck.log` was given."""
    session = current()
    book = book_of(session)
    try:
        book.add("rankdeck", {**(values or {}), **named}, step)
    except Exception as error:
        session.switch_off("rankdeck.log", error)
