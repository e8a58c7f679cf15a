"""Calls functions of several parts at the same event, and disables a part at its first error.

The events, in which the leading optimizer is the one whose steps count as steps of the run (steps.py):

    on_rank_start(optimizer)     this process has become a rank
    on_leader_chosen(optimizer)  this optimizer leads from now on
    on_backward(tensors)         a backward pass starts that is not nested in another
    on_some_backward(tensors)    the same, but only in sampled steps and in every 16th step
    on_first_step(optimizer)     this optimizer's first step starts
    before_step(optimizer, leads)  a step starts that is not nested in another; `leads`: the optimizer leads
    before_sampled_step(optimizer, leads, norm)  the same, in a sampled step; `norm`: gradient norm or None
    on_collective(name)          the script has called a collective of torch.distributed
    on_step(optimizer)           a step of the leading optimizer has ended
    on_some_step(optimizer)      the same, but only every fourth step
    on_sampled_step(optimizer)   a sampled step of the leading optimizer has ended
    on_tick()                    the thread writes events, or the process ends
    on_fork()                    a forked child starts and must reset its state
"""

from __future__ import annotations

from functools import wraps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Hooks:
    """The functions that are called at one event. Each belongs to a part of the observer, and a function's
    first error disables its whole part.

    Most events occur in every step, so a part that needs an event only for a while adds its function for that
    time and then removes it.
    """

    def __init__(self, disable_part: Callable[[str, BaseException], None]) -> None:
        self._disable_part = disable_part
        self._functions: list[tuple[str, Callable[..., Any]]] = []

    def add(self, part: str, function: Callable[..., Any]) -> None:
        """Call `function` of `part` at this event from now on; adding it twice has no effect."""
        if (part, function) not in self._functions:
            self._functions = [*self._functions, (part, function)]

    def remove(self, part: str, function: Callable[..., Any]) -> None:
        """Stop calling `function` of `part` at this event."""
        # A new list, because `call` may be iterating over the old one.
        self._functions = [pair for pair in self._functions if pair != (part, function)]

    def remove_part(self, part: str) -> None:
        """Stop calling all functions of a part at this event."""
        self._functions = [pair for pair in self._functions if pair[0] != part]

    def call(self, *args: Any) -> None:
        """Call all functions with these arguments."""
        for part, function in self._functions:
            try:
                function(*args)
            except Exception as error:
                self._disable_part(part, error)


class PartHooks:
    """The hooks of all events, and the parts that are disabled."""

    def __init__(self) -> None:
        self.disabled_parts: dict[str, str] = {}
        self._all_hooks: list[Hooks] = []
        self.on_rank_start = self._add_hooks()
        self.on_leader_chosen = self._add_hooks()
        self.on_backward = self._add_hooks()
        self.on_some_backward = self._add_hooks()
        self.on_first_step = self._add_hooks()
        self.before_step = self._add_hooks()
        self.before_sampled_step = self._add_hooks()
        self.on_collective = self._add_hooks()
        self.on_step = self._add_hooks()
        self.on_some_step = self._add_hooks()
        self.on_sampled_step = self._add_hooks()
        self.on_tick = self._add_hooks()
        self.on_fork = self._add_hooks()

    def _add_hooks(self) -> Hooks:
        hooks = Hooks(self.disable_part)
        self._all_hooks.append(hooks)
        return hooks

    def disable_part(self, part: str, error: BaseException | str) -> None:
        """Disable a part from now on. `error` is the reason to report, unless the part already has one."""
        if not isinstance(error, str):
            error = "%s: %s" % (type(error).__name__, error)
        self.disabled_parts.setdefault(part, error[:300])
        for hooks in self._all_hooks:
            hooks.remove_part(part)

    def wrap_part(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return `function`, wrapped to disable the part at its first error and to do nothing afterwards."""

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            if part not in self.disabled_parts:
                try:
                    return function(*args, **kwargs)
                except Exception as error:
                    self.disable_part(part, error)
            return None

        return call

    def call_part(self, part: str, function: Callable[..., Any], *args: Any) -> Any:
        """Call a part's function once and return its result. If it raises an exception, disable the part.

        Returns None after an exception, or if the part was already disabled.
        """
        if part not in self.disabled_parts:
            try:
                return function(*args)
            except Exception as error:
                self.disable_part(part, error)
        return None
