"""Finds parameters that two optimizers update after the same backward pass.

A pair of optimizers is reported the second time, and only if both used the same gradients: the outer
optimizer of local SGD gets gradients of its own, which the script writes after the inner optimizer's steps.
Read steps.py first.
"""

from __future__ import annotations

import weakref

from .models import list_parameters
from .weight_digests import parameter_names

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

_MAX_PAIRS = 15


class SharedParameters:
    """The optimizers that have stepped since the last backward pass."""

    def __init__(self, session: RankSession, part: str) -> None:
        self._session, self._part = session, part
        self.forget()

    def forget(self) -> None:
        self._stepped: list[tuple[Any, Any]] = []
        """Per optimizer: (weak reference, (id, version) of the shared parameter's gradient at its step)."""
        self._pairs: dict[tuple[int, int], Any] = {}
        """For each pair of optimizers, by their ids, a weak reference to a parameter that both have; None if
        they share none, or once the pair is reported."""
        self._shared: Any = None
        """Weak reference to the shared parameter of the newest pair that shares one."""

    def on_first_step(self, _: Any) -> None:
        """Start comparing parameters; called when an optimizer's first step starts."""
        self._session.before_step.add(self._part, self.before_step)

    def on_backward(self, _: Any) -> None:
        """Handle the start of a backward pass that is not nested in another."""
        self._stepped = []
        self._session.on_backward.remove(self._part, self.on_backward)

    def before_step(self, optimizer: Any, leads: bool) -> None:
        """Compare the parameters of several optimizers that step after the same backward pass."""
        if leads and len(self._session.optimizers) < 2:
            self._session.before_step.remove(self._part, self.before_step)
            return
        if self._stepped:
            self._compare(optimizer)
        else:
            self._session.on_backward.add(self._part, self.on_backward)
        self._stepped.append((weakref.ref(optimizer), self._shared_gradient()))

    def _shared_gradient(self) -> tuple[int, int] | None:
        """Return (id, version) of the gradient of the shared parameter; None if there is none."""
        parameter = None if self._shared is None else self._shared()
        gradient = None if parameter is None else parameter.grad
        return None if gradient is None else (id(gradient), gradient._version)

    def _compare(self, optimizer: Any) -> None:
        for reference, earlier in self._stepped:
            other = reference()
            pair = (id(other), id(optimizer))
            if other is None or other is optimizer:
                continue
            if pair not in self._pairs:
                if len(self._pairs) < _MAX_PAIRS:
                    shared = self._find_shared(other, optimizer)
                    self._pairs[pair] = weakref.ref(shared[0]) if shared else None
                    self._shared = self._pairs[pair] or self._shared
            elif self._pairs[pair] is not None and earlier is not None and earlier == self._shared_gradient():
                self._pairs[pair] = None
                self._report(self._find_shared(other, optimizer))

    def _find_shared(self, other: Any, optimizer: Any) -> list[Any]:
        ids = {id(p) for p in list_parameters(other)}
        return [p for p in list_parameters(optimizer) if id(p) in ids and p.grad is not None]

    def _report(self, parameters: list[Any]) -> None:
        if not parameters:
            return
        names = parameter_names(self._session)
        self._session.report_anomaly(
            "stepped-twice",
            names=[names.get(id(p), "a parameter") for p in parameters],
            step=self._session.step + 1,
        )
