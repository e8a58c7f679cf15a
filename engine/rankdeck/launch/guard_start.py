"""What runs as a run's guard, from its first fork to its end: guard.py, or head_guard.py and
`MemberGuard` where the run has several hosts. Standard library only, as all of the guard.
"""

from __future__ import annotations

import json
import os
import time
from typing import NoReturn

from rankdeck.launch.guard import Alive, Guard, Refused
from rankdeck.launch.guard_spec import GuardSpec
from rankdeck.launch.head_guard import HeadGuard
from rankdeck.launch.host_guard import LEAVE_S, VICTIM_S, HostGuard, how_it_went, ranks_by_host
from rankdeck.launch.last_word import phrase
from rankdeck.launch.peers import LEFT, Membership, Word
from rankdeck.launch.relay import Sender


def daemonise() -> None:
    """Leave the caller's session and terminal for good."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    null = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(null, handle)
    os.close(null)


def main(spec: GuardSpec) -> NoReturn:
    daemonise()
    ready = spec["ready_fd"]
    for handle in (ready, spec["tether_fd"], *spec["held"]):
        if handle is not None:
            os.set_inheritable(handle, False)
    hosts = spec["hosts"]
    kind = Guard if not hosts else MemberGuard if "head" in hosts else HeadGuard
    guard = kind(spec)
    answer: dict[str, int | bool | str] = {"ready": os.getpid()}
    try:
        guard.prepare()
        guard.begin()
    except Alive:
        answer = {"alive": True}
    except Refused as refusal:
        answer = {"refused": str(refusal)}
    except OSError as error:
        answer = {"failed": f"{error.filename or spec['final']}: {error.strerror}"}
    os.write(ready, json.dumps(answer).encode())
    if "ready" not in answer:
        os._exit(1)
    os.close(ready)
    guard.watch()
    while guard.restart():
        guard.watch()
    if guard.whereabouts.is_deleted:
        guard.end_removed()
    else:
        guard.end()
    os.close(guard.held[0])
    guard.whereabouts.leave()
    os._exit(0)


# The guard of any but the first of several hosts: it comes to the head's, and does what that says.
#
# Standard library only, as all of the guard.


class MemberGuard(HostGuard):
    """It sends the head what its ranks tell."""

    def __init__(self, spec: GuardSpec) -> None:
        super().__init__(spec)
        self._sender = Sender(self._run, self._attempt)
        self._next: Word | None = None
        self._is_over = False

    def prepare(self) -> None:
        """It has come to the head before the run has its name."""
        given, head = self.given, (self.given["head"][0], self.given["head"][1])
        hello = {"word": "hello", "name": self.name, "secret": given["secret"], **given["own"]}
        try:
            self._membership = Membership(self._selector, head, hello, self._heed, self._lose)
        except OSError as error:
            error.filename = "{}:{}".format(*head)
            raise
        super().prepare()

    def look(self, now_s: float) -> None:
        if not self._membership.is_behind:  # what was said before has gone
            for word in self._sender.news():
                self._membership.say(word)
        self._membership.look(now_s)
        if self._next is not None and not self.has_begun and self._status is None:
            self.layout, self._next = self._next, None
            self.start_supervisor()

    def turn(self) -> None:
        self.hear(self.look_s)
        self._membership.look(time.monotonic())

    def _heed(self, word: Word) -> None:
        match word.get("word"):
            case "begin":
                try:
                    self._next = {**word, "index": list(ranks_by_host(word)).index(self.name)}
                except (KeyError, TypeError, ValueError):
                    self._is_over = True
                    self.fail(phrase("What the head says of the hosts makes no sense."))
            case "refused":
                self.fail(
                    phrase(
                        "The run's head did not take {name}: a host of that name is there, or all have come. "
                        "To give this one another name, put {variable}=NAME before its command.",
                        name=self.name,
                        variable="RANKDECK_HOST",
                    )
                )
            case "stop":
                self.stop(now=bool(word.get("now")))
            case "end":
                host, why = str(word.get("because"))[:200], str(word.get("why") or "")[:2000]
                self.because = phrase("The run ended because of {host}.", host=host)
                if why:
                    self.because = phrase("{host}: {reason}", host=host, reason=why)
                self.end_part()
            case "over":
                self._is_over = True
            case "clock":
                self._membership.say({**word, "now": time.time()})

    def _lose(self, how: str) -> None:
        self._is_over = True
        if self._status is None:
            if how != LEFT:
                self.lost = how_it_went(phrase("the head"), str(self.given["head"][0]), how, self.name)
                self.kill_part()
            self.end_part()

    def stop(self, *, now: bool) -> None:
        if not self._stop_asked:
            self._membership.say({"word": "stop", "now": now})
        super().stop(now=now)

    def go_on(self) -> bool:
        """As the head says, once it knows how this part has ended."""
        self._send_all()
        self._membership.say(self.part())
        until_s = time.monotonic() + 2 * LEAVE_S
        while self._next is None and not self._is_over and not self._stop_asked:
            if time.monotonic() > until_s:
                return False
            self.turn()
        if self._next is None or self._stop_asked:
            return False
        self.layout, self._next = self._next, None
        return self.begin_again(str(self.layout.get("failed", ""))[:2000])

    def end(self) -> None:
        status = 1 if self._status is None else self._status
        super().end()
        self._send_all()
        self._membership.say({**self.part(), "status": status})
        self._membership.close()

    def end_removed(self) -> None:
        self._membership.say({**self.part(), "status": 1})
        self._membership.close()

    def _send_all(self) -> None:
        """What is left, before the last word; not for ever."""
        until_s = time.monotonic() + VICTIM_S
        while time.monotonic() < until_s and self.lost is None:
            words = list(self._sender.news())
            for word in words:
                self._membership.say(word)
            if not words and not self._membership.is_behind:
                return
            self._membership.look(time.monotonic())
            time.sleep(0.01 if self._membership.is_behind else 0.0)
