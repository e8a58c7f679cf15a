"""What a script tells of itself, by its loggers or by `rankdeck.log`, on its way into the run's events.

Read metrics.py before; loggers.py and log.py bring the values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .metrics import MetricsBook
from .readings import OffCpu
from .session import current

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .session import RankSession

PART = "loggers"
_books: dict[int, MetricsBook] = {}


def book_of(session: RankSession) -> MetricsBook:
    """The book of this process, which the session's thread empties into events."""
    book = _books.get(id(session))
    if book is None:
        book = _books[id(session)] = MetricsBook(session.logs, lambda: session.step, OffCpu().read)

        def flush() -> None:
            for columns in book.take(session.ending):
                session.emit("metric", **columns._asdict())

        session.on_tick.append(session.guarded(PART, flush))
        session.on_fork.append(book.forget)
        session.book = book
    return book


def take(values: Any, named: Mapping[str, object], step: Any) -> None:
    """What `rankdeck.log` was given."""
    session = current()
    book = book_of(session)
    try:
        book.add("rankdeck", {**(values or {}), **named}, step)
    except Exception as error:
        session.switch_off("rankdeck.log", error)
