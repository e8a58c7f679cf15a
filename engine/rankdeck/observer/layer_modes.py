"""Checks whether a part of the model trains in evaluation mode while the rest is in training mode.

Only a submodule whose layers are all in evaluation mode, and which has trained weights, is judged: single
layers (frozen batch norms, dropout that is switched off) are usually set on purpose. The mode is a fault

- if the submodule trained in training mode before, `eval` was called on it, and it was then evaluated before
  the next step: the evaluation did not restore the mode;
- if the submodule was in evaluation mode from the first step on, contains dropout and no batch norm, and
  either a library called `eval` (`from_pretrained`) or the script did so before the submodule was part of a
  model.

A submodule is skipped if it, or a module that contains it, has its own `train` method. Before a fault is
reported, one step is probed: the submodule must really run with gradients in evaluation mode. Read
eval_calls.py first.
"""

from __future__ import annotations

import weakref

from .models import uses_compiler

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .eval_calls import EvalCall, EvalCalls
    from .session import RankSession
    from .trained_modules import TrainedModules

PART = "modes"
_NUM_STEPS = 10
"""Number of steps for which a submodule must have been in evaluation mode."""
_MIN_SCANS = 3
_MAX_PROBES = 3
_MAX_BURSTS = 8
"""Maximum number of evaluations after which the next steps are scanned although they are not sampled."""
_MAX_DEPTH = 32
_MAX_PATHS = 3
_PLAIN_TRAIN = ("torch.", "transformers.modeling_utils")
"""Prefixes of Python modules whose classes have a plain `train`, which sets the mode of all submodules."""


class _EvalPart:
    """A trained submodule whose layers are all in evaluation mode."""

    def __init__(self, module: Any, step: int) -> None:
        self.ref = weakref.ref(module)
        self.step = step
        """Step of the first scan that found this part."""
        self.num_scans = 0
        self.call: EvalCall | None = None
        """The call of `eval` that set the mode, if it was observed."""
        self.is_fault = False
        self.modes: set[bool] = set()
        """Modes in which this part ran with gradients in the probed step."""


class LayerModes:
    """Scans the modes of the trained submodules after sampled steps."""

    def __init__(self, torch: Any, session: RankSession, trained: TrainedModules, calls: EvalCalls) -> None:
        self._torch, self._session, self._trained, self._calls = torch, session, trained, calls
        self._probe: Any = None
        self.forget()

    def forget(self) -> None:
        self._end_probe()
        self._parts: dict[str, _EvalPart] = {}
        """Submodules of the last scan, by path from the root module."""
        self._last_scan: int | None = None
        self._num_probes = self._num_bursts = 0
        self._probed: dict[str, _EvalPart] = {}
        self._probed_modules: dict[int, _EvalPart] = {}
        """The parts in `_probed`, by the id of each module inside them."""
        self._has_reported = False

    def on_evaluated(self, modules: list[Any]) -> None:
        """Scan the next steps too if one of `modules`, which were just evaluated, is trained but still in
        evaluation mode."""
        trained = self._trained
        if self._num_bursts < _MAX_BURSTS and any(
            trained.trains(module) and not module.training for module in modules
        ):
            self._num_bursts += 1
            self._session.request_samples(_NUM_STEPS + 1)

    def on_step(self, _: Any) -> None:
        """End the probe, and report the submodules that ran in evaluation mode during the probed step."""
        self._end_probe()
        confirmed = {path: part for path, part in self._probed.items() if part.modes == {False}}
        self._probed = {}
        if confirmed:
            self._report(confirmed)

    def scan(self) -> None:
        """Scan the trained submodules, and probe the next step if some of them seem to be in the wrong mode.

        If torch.compile is used, they are reported without a probe.
        """
        root, step = self._trained.root, self._session.step
        if root is None or self._has_reported:
            return
        found: dict[str, Any] = {}
        # If nothing is in training mode, mode_checks.py reports the whole model.
        if root.training or any(module.training for module in root.modules()):
            self._find(root, "", found, 0)
        parts: dict[str, _EvalPart] = {}
        for path, module in found.items():
            part = self._parts.get(path)
            if part is None or part.ref() is not module:
                part = _EvalPart(module, step)
                part.call = call = self._calls.last_on(module)
                part.is_fault = call is not None and self._is_fault(module, call)
            part.num_scans += 1
            parts[path] = part
        self._parts, self._last_scan = parts, step
        ripe = {path: part for path, part in parts.items() if part.is_fault and self._is_ripe(part)}
        if not ripe or self._probe is not None:
            return
        if uses_compiler():
            self._report(ripe)
        elif self._num_probes < _MAX_PROBES:
            self._num_probes += 1
            self._start_probe(ripe)

    def _is_fault(self, module: Any, call: EvalCall) -> bool:
        """Check whether this call left a submodule in evaluation mode unintentionally."""
        if call.step:
            return call.has_run and (self._last_scan is None or call.step >= self._last_scan)
        # Called before the first step, but the submodule has trained in training mode since.
        if self._last_scan is not None or call.is_on_part:
            return False
        return not any(map(self._trained.is_norm, self._trained.iter_layers(module)))

    def _is_ripe(self, part: _EvalPart) -> bool:
        return part.num_scans >= _MIN_SCANS and self._session.step - part.step + 1 >= _NUM_STEPS

    def _find(self, module: Any, path: str, found: dict[str, Any], depth: int) -> None:
        """Add the outermost trained submodules in evaluation mode to `found`, by path."""
        if depth > _MAX_DEPTH or not self._trained.trains(module) or _has_own_train(module):
            return
        if depth and not module.training and not any(part.training for part in module.modules()):
            if self._has_trained_weights(module) and any(True for _ in self._trained.iter_layers(module)):
                found[path] = module
            return
        for name, child in module._modules.items():
            if child is not None:
                self._find(child, path + "." + name if path else name, found, depth + 1)

    def _has_trained_weights(self, module: Any) -> bool:
        """Check whether a layer other than a norm has a trained parameter with a gradient."""
        ids, norms = self._trained.parameter_ids, self._torch.nn.modules.batchnorm._NormBase
        return any(
            id(parameter) in ids and parameter.requires_grad and parameter.grad is not None
            for part in module.modules()
            if not isinstance(part, norms)
            for parameter in part._parameters.values()
            if parameter is not None
        )

    def _start_probe(self, parts: dict[str, _EvalPart]) -> None:
        self._probed = parts
        self._probed_modules = {}
        for part in parts.values():
            part.modes = set()
            module = part.ref()
            for inner in () if module is None else module.modules():
                self._probed_modules[id(inner)] = part
        hook = self._torch.nn.modules.module.register_module_forward_pre_hook
        self._probe = hook(self._on_forward)
        self._session.on_step.add(PART, self.on_step)

    def _on_forward(self, module: Any, _: Any) -> None:
        try:
            part = self._probed_modules.get(id(module))
            if part is not None and self._torch.is_grad_enabled():
                part.modes.add(bool(module.training))
        except Exception as error:
            self._session.disable_part(PART, error)

    def _report(self, parts: dict[str, _EvalPart]) -> None:
        kinds: dict[str, int] = {}
        for part in parts.values():
            for layer in self._trained.iter_layers(part.ref()) if part.ref() is not None else ():
                kinds[type(layer).__name__] = kinds.get(type(layer).__name__, 0) + 1
        first = min(parts.values(), key=lambda part: part.step)
        call = first.call
        if call is None or not kinds:
            return
        # One report is enough: its fix is one call for the whole model.
        self._has_reported = True
        paths, num_more = list(parts)[:_MAX_PATHS], len(parts) - _MAX_PATHS
        self._session.report_anomaly(
            "layers-eval-while-training",
            names=[", ".join(paths), *("%d %s" % (count, name) for name, count in kinds.items())],
            step=(call.step or self._session.first_step) + 1,
            line=call.line,
            was_training=call.step,
            more=max(0, num_more),
        )

    def _end_probe(self) -> None:
        if self._probe is not None:
            self._probe.remove()
            self._probe = None
            self._session.on_step.remove(PART, self.on_step)


def _has_own_train(module: Any) -> bool:
    """Check whether `module` or its class has its own `train` method, which may set modes on purpose."""
    names = module.__dict__
    if "train" in names or "eval" in names:
        return True
    for cls in type(module).__mro__:
        if "train" in vars(cls):
            return not cls.__module__.startswith(_PLAIN_TRAIN)
    return False
