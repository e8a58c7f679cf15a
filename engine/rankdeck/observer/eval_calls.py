"""Records on which modules `eval` is called, and whether they were evaluated before the next step.

A call of `eval` on a submodule is either followed by an evaluation or meant to last: forward passes without
gradients between the call and the next step show which. A call before the first step is made by a library
(`from_pretrained`), or by the script before or after the module has become part of a model. layer_modes.py
uses these records.
"""

from __future__ import annotations

import functools
import gc
import weakref

from .frames import drop_own_frame, is_called_by_script, script_line
from .models import uses_compiler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .session import RankSession

_MAX_CALLS = 64
_MAX_HOOKS = 8
_MAX_REFERRER_SEARCHES = 4
"""Maximum number of searches through all objects of the process, which take about 0.02 s each."""
_MAX_RUN = 4096


class EvalCall:
    """The last call of `eval` on a module."""

    def __init__(self, module: Any, step: int, num_batches: int) -> None:
        self.ref = weakref.ref(module)
        self.step, self.num_batches = step, num_batches
        self.line = script_line()
        self.unchanged_ids = {id(part) for part in module.modules() if not part.training}
        """Ids of those among `module` and its submodules that were already in evaluation mode."""
        self.is_on_part = False
        """Whether the script called `eval` on a part of another object, before the first step."""
        self.has_run = False
        """Whether the module was evaluated between the call and the next step."""


class EvalCalls:
    """The last calls of `eval`, newest last."""

    def __init__(self, torch: Any, session: RankSession, is_mode_dependent: Callable[[Any], bool]) -> None:
        self._torch, self._session = torch, session
        self._is_mode_dependent = is_mode_dependent
        self._num_searches = 0
        self._hook: Any = None
        self.forget()

    def forget(self) -> None:
        self._end_hook()
        self._calls: dict[int, EvalCall] = {}
        """The last call on each module, by the module's id."""
        self.new: list[EvalCall] = []
        """Calls since the last step of the leading optimizer."""
        self.num_batches = 0
        """Number of batches that loaders have returned while gradients were disabled."""
        self._num_hooks = 0
        self._run_ids: set[int] = set()
        """Ids of the modules that have run without gradients since the last step."""

    def on_eval(self, module: Any) -> None:
        """Handle a call of `eval` on a module."""
        # A dropout layer, or another layer without weights: no submodule that could train.
        if not module._modules and next(iter(module.parameters()), None) is None:
            return
        step = self._session.step
        last = self._calls.get(id(module))
        is_same: bool = last is not None and last.ref() is module
        if is_same and not module.training:
            return  # It has been in evaluation mode since that call.
        self._calls.pop(id(module), None)
        call = EvalCall(module, step, self.num_batches)
        self._calls[id(module)] = call
        if len(self._calls) > _MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        if not step:
            call.is_on_part = is_called_by_script("eval", "train") and self._is_part(module)
            return
        # Modules that ran before this call do not show that an evaluation follows it.
        if self._run_ids:
            self._run_ids -= {id(part) for part in module.modules()}
        if len(self.new) < _MAX_CALLS:
            self.new.append(call)
        if self._hook is None and self._num_hooks < _MAX_HOOKS and not uses_compiler():
            self._num_hooks += 1
            hook = self._torch.nn.modules.module.register_module_forward_pre_hook
            self._hook = hook(self._on_forward)

    def _is_part(self, module: Any) -> bool:
        """Check whether another object contains `module`."""
        # If this cannot be determined, assume a part: the mode is then considered intentional.
        if self._num_searches >= _MAX_REFERRER_SEARCHES:
            return True
        if not any(self._is_mode_dependent(part) for part in module.modules()):
            return True
        self._num_searches += 1
        # The module's own namespace and the script's globals are dicts too.
        return any(
            isinstance(referrer, dict) and "__builtins__" not in referrer
            for referrer in gc.get_referrers(module)
        )

    def _on_forward(self, module: Any, _: Any) -> None:
        if not self._torch.is_grad_enabled() and len(self._run_ids) < _MAX_RUN:
            self._run_ids.add(id(module))

    def take_evaluated(self) -> list[Any]:
        """Return the modules that were evaluated after `eval` was called on them, and clear the list of new
        calls."""
        self._end_hook()
        evaluated: list[Any] = []
        for call in self.new:
            module = call.ref()
            if module is None:
                continue
            call.has_run = self.num_batches > call.num_batches or (
                bool(self._run_ids) and any(id(part) in self._run_ids for part in module.modules())
            )
            if call.has_run:
                evaluated.append(module)
        self.new, self._run_ids = [], set()
        return evaluated

    def last_on(self, module: Any) -> EvalCall | None:
        """Return the last call that put `module` into evaluation mode: a call on `module` or on a module
        that contains it or, if there is none, on one of its submodules."""
        parts = {id(part) for part in module.modules()}
        inside: EvalCall | None = None
        for call in reversed(list(self._calls.values())):
            other = call.ref()
            if other is None or id(module) in call.unchanged_ids:
                continue
            if any(part is module for part in other.modules()):
                return call
            if inside is None and id(other) in parts:
                inside = call
        return inside

    def _end_hook(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def install(torch: Any, on_eval: Any) -> None:
    """Call `on_eval` with each module on which `eval` is called, but not with its submodules."""
    module_type = torch.nn.Module
    # Module.eval calls train(False), and so do the classes that have an `eval` of their own.
    train = module_type.train
    is_inside = False

    @functools.wraps(train)
    def observed(self: Any, mode: bool = True) -> Any:
        nonlocal is_inside
        if is_inside:
            return train(self, mode)
        is_inside = True
        try:
            if mode is False:
                on_eval(self)
            return train(self, mode)
        except BaseException as error:
            drop_own_frame(error)
            raise
        finally:
            is_inside = False

    module_type.train = observed
