"""Ctrl-C of one who watches a run of another host: nobody leaves before the host has answered, or without
word of what may go on there.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rankdeck.base.phrases import phrase
from rankdeck.cli import console
from rankdeck.cli.until_end import Interrupts

if TYPE_CHECKING:
    from rankdeck.cli.display import Display
    from rankdeck.remote.following import RemoteRun

ANSWER_S = 15.0
"""How long one who leaves waits for the host's word that what runs there has stopped."""


def say_left(host: str, run: str = "") -> None:
    """What may go on on a host after one has left, and how to stop it."""
    if run:
        words = phrase(
            "{host} has not said that the run has stopped. It may go on there. To stop it: "
            "rankdeck --host {host} stop {run}",
            host=host,
            run=run,
        )
    else:
        words = phrase(
            "{host} has not said that the command has ended. See what goes on there: "
            "rankdeck --host {host} runs",
            host=host,
        )
    console.err().print(words, soft_wrap=True)


class Stopping:
    """What Ctrl-C does to a run of another host: the first two ask for its stop, the third one leaves when
    the host has stopped it, or has not said so for a while. Before there is a `display`, it speaks on stderr.
    """

    def __init__(self, followed: RemoteRun, path: str, num_interrupts: int) -> None:
        self._followed, self._path = followed, path
        self.display: Display | None = None
        self.interrupts = Interrupts(self._ask, self.say)
        self.interrupts.count = num_interrupts
        self._until_s: float | None = None

    def _ask(self, now: bool) -> None:
        self._followed.ask(["stop", self._path, *(["--now"] if now else [])])

    def say(self, words: str) -> None:
        if self.display is None:
            console.err().print(words, soft_wrap=True)
        else:
            self.display.say(words)

    def goes_on(self) -> bool:
        """Do what the signals since the last call ask for; False where it is time to leave."""
        if self.interrupts.act():
            return True
        if self._until_s is None:
            self._until_s = time.monotonic() + ANSWER_S
            host = self._followed.link.host
            self.say(
                phrase("leaving once {host} has stopped it, in {s:.0f} s at most", host=host, s=ANSWER_S)
            )
        return time.monotonic() < self._until_s
