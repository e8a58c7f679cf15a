"""Checks whether parameters, gradients and optimizers belong together.

Gradients are examined before sampled steps of the leading optimizer. If trainable parameters have had no
gradient in any of the first examined steps, the next step is probed: a global forward hook, removed after
that step, records which of their modules run, so that a head that is merely unused is not reported.
Parameters that become trainable later are examined in the same way. update_checks.py examines the updates
themselves. Read steps.py first.
"""

from __future__ import annotations

import gc
import sys
import weakref

from . import unfreezing
from .models import list_parameters, unwrapped, uses_compiler
from .shared_parameters import SharedParameters
from .unfreezing import find_model, stepped_ids, trains_vectors_only
from .update_checks import UpdateChecks
from .weight_digests import parameter_names, plain_name
from .wrappers import SHARDED_WRAPPERS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "belonging"
_NUM_EXAMINED = 15
"""Number of steps to examine before the next step is probed for parameters that never had a gradient."""
_NUM_ALL_MISSING = 4
_MAX_FRAMES = 60
_MAX_NODES = 400
_MAX_COMPARED = 4096
_MAX_DISTANCE = 0.5
"""Maximum distance of a copy from its original, as a share of the norm; independent initial values are about
1.4 apart."""


class ParameterChecks:
    """Gradients and updates of the leading optimizer's parameters, as examined so far."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._torch, self._session = torch, session
        self.forget()

    def forget(self) -> None:
        self._num_examined = self._num_all_missing = 0
        self._first_examined = 0
        self._without: dict[int, Any] | None = None
        """Trainable parameters that have had no gradient in any examined step, by id."""
        self._probe: Any = None
        """Handle of the global forward hook while a step is probed."""
        self._probed_models: list[Any] = []
        """Weak references to the model, with and without its wrappers, while a step is probed."""
        self._is_model_in_graph: bool | None = None
        """Whether gradients were enabled when the model last ran in the probed step; None if it has not run.
        """
        self._ran: dict[int, str] = {}
        """How the module of a parameter without gradients ran in the probed step, by the parameter's id."""
        self._sums: dict[int, float | None] = {}
        """Sums of the values of the parameters without gradients when the probe began, by id."""
        self._is_done = False
        self._waiting: set[int] = set()
        """Ids of parameters with a gradient whose optimizer has not stepped yet."""
        self._wrapped: list[list[tuple[str, Any, bool]]] = []
        """(name, weak reference, whether it may be frozen) of the parameters of each wrapper."""

    def before_step(self, _: Any, leads: bool) -> None:
        """End the probe, which records the modules that run, when a step of the leading optimizer starts."""
        if leads and self._probe is not None:
            self._end_probe()

    def before_sampled_step(self, optimizer: Any, leads: bool, _: Any) -> None:
        """Examine the gradients before a sampled step of the leading optimizer."""
        if not leads:
            return
        losses = self._session.losses
        if losses is None or losses.backwards == 0:
            return  # A closure computes the gradients inside the step.
        if not self._is_done or self._session.is_checked:
            self._examine(optimizer)

    # Which parameters have gradients.

    def _examine(self, optimizer: Any) -> None:
        trainable = {id(p): p for p in list_parameters(optimizer) if p.requires_grad}
        if self._without is None:
            self._without = {key: weakref.ref(p) for key, p in trainable.items()}
        with_gradient = [key for key, p in trainable.items() if p.grad is not None]
        for key in with_gradient:
            self._without.pop(key, None)
        self._num_examined += 1
        if self._num_examined == 1:
            self._first_examined = self._session.step + 1
        if trainable and not with_gradient:
            self._num_all_missing += 1
            if self._num_all_missing == _NUM_ALL_MISSING:
                self._is_done = True
                self._report_foreign(optimizer, trainable)
            return
        self._num_all_missing = 0
        if self._num_examined == 2 or (self._num_examined == _NUM_EXAMINED and self._waiting):
            self._report_left_out(optimizer)
        if self._num_examined == _NUM_EXAMINED:
            self._is_done = True
            if self._without and not uses_compiler():
                self._ran, self._is_model_in_graph = {}, None
                parameters = {key: ref() for key, ref in self._without.items()}
                self._sums = {key: self._sum_of(p) for key, p in parameters.items() if p is not None}
                model = find_model(self._session, optimizer)
                if model is not None:
                    self._probed_models = [weakref.ref(model), weakref.ref(unwrapped(model))]
                hook = self._torch.nn.modules.module.register_module_forward_pre_hook
                self._probe = hook(self._on_forward)
                self._session.before_step.add(PART, self.before_step)

    def restart(self, parameters: dict[int, Any]) -> None:
        """Examine `parameters` (by id), which have become trainable, instead of the earlier parameters."""
        if self._is_done and self._probe is None:
            self._without = {key: weakref.ref(p) for key, p in parameters.items()}
            self._num_examined, self._is_done = 0, False
            self._session.request_samples(_NUM_EXAMINED + 1)

    def _report_foreign(self, optimizer: Any, trainable: dict[int, Any]) -> None:
        """Report an optimizer none of whose parameters has a gradient."""
        session = self._session
        if session.order is not None and session.order.is_zeroed:
            return  # The gradients were cleared after backward: step_order.py reports that.
        models = [model for model in (ref() for ref in session.models) if model is not None]
        foreign = {
            id(p) for model in models for p in model.parameters() if p.grad is not None
        } - trainable.keys()
        session.report_anomaly(
            "optimizer-without-gradients",
            names=[type(optimizer).__name__],
            step=max(1, session.step + 2 - _NUM_ALL_MISSING),
            parameters=len(trainable),
            foreign=len(foreign),
            sharded=float(session.facts.get("wrapper") in SHARDED_WRAPPERS),
        )

    def _report_left_out(self, optimizer: Any) -> None:
        """Report parameters of the model that have a gradient, but that no optimizer updates."""
        session = self._session
        stepped, model = stepped_ids(session), find_model(session, optimizer)
        if model is None or not stepped:
            return
        # A sharded model's parameters may all be flat.
        if trains_vectors_only(session) and session.facts.get("wrapper") not in SHARDED_WRAPPERS:
            return
        left_out: dict[int, str] = {}
        fixed = _fixed_ids(model, stepped)
        is_after = False
        for name, parameter in model.named_parameters():
            if id(parameter) in stepped:
                is_after = True
            # Only after the first parameter that is stepped: a frozen backbone is left out on purpose.
            elif (
                is_after
                and parameter.requires_grad
                and parameter.grad is not None
                and id(parameter) not in fixed
            ):
                left_out[id(parameter)] = plain_name(name)
        if left_out and self._num_examined == 2:
            # An optimizer may step more rarely, as that of a generator beside its critic.
            with_optimizer = {id(p) for other in _all_optimizers(self._torch) for p in list_parameters(other)}
            self._waiting = with_optimizer & left_out.keys()
            left_out = {key: name for key, name in left_out.items() if key not in self._waiting}
        else:
            left_out = {key: name for key, name in left_out.items() if key in self._waiting}
        if left_out:
            owned = {id(p) for p in model.parameters()}
            group_parameters = list_parameters(optimizer)
            session.report_anomaly(
                "gradient-without-optimizer",
                names=list(left_out.values()),
                step=session.step + 1,
                replaced=sum(id(p) not in owned for p in group_parameters),
            )

    def _on_forward(self, module: Any, inputs: Any) -> None:
        try:
            is_enabled = self._torch.is_grad_enabled()
            if any(ref() is module for ref in self._probed_models):
                self._is_model_in_graph = is_enabled
            if self._may_leave_unused(module):
                return
            for parameter in module._parameters.values():
                if parameter is None or id(parameter) not in (self._without or {}):
                    continue
                if is_enabled and self._has_trained_input(inputs):
                    # Its output may be merely unused, as that of an auxiliary head or of a pooler.
                    self._ran[id(parameter)] = "unused"
                elif is_enabled:
                    if self._ran.get(id(parameter)) != "unused":
                        self._ran[id(parameter)] = "graph"
                elif self._is_in_checkpoint():
                    self._ran.setdefault(id(parameter), "checkpoint")
                # In an evaluation the model runs without gradients, or it is in evaluation mode.
                elif module.training and self._is_model_in_graph is not False:
                    self._ran.setdefault(id(parameter), "disabled")
        except Exception as error:
            self._session.disable_part(PART, error)

    def _may_leave_unused(self, module: Any) -> bool:
        """Check whether a module may run without using its own parameters, such as a model's mask token: it
        has submodules, and some of its parameters get gradients. In an adapter around a frozen layer, no
        parameter gets a gradient."""
        if not module._modules or type(module).__module__.startswith("torch."):
            return False
        without = self._without or {}
        return any(p.requires_grad and id(p) not in without for p in module.parameters())

    def _has_trained_input(self, inputs: Any) -> bool:
        """Check whether one of a module's inputs was computed from parameters that get gradients."""
        tensors = [value for value in inputs if isinstance(value, self._torch.Tensor)]
        waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
        visited: set[Any] = set()
        while waiting and len(visited) < _MAX_NODES:
            node = waiting.pop(0)
            if node is None or node in visited:
                continue
            visited.add(node)
            variable = getattr(node, "variable", None)
            if isinstance(variable, self._torch.nn.Parameter) and id(variable) not in (self._without or {}):
                return True
            waiting.extend(following for following, _ in node.next_functions)
        return False

    def _is_in_checkpoint(self) -> bool:
        """Check whether a re-entrant checkpoint is running its forward pass, which it does without
        gradients."""
        frame: Any = sys._getframe(2)
        for _ in range(_MAX_FRAMES):
            if frame is None:
                break
            if frame.f_code.co_filename.endswith("checkpoint.py"):
                return True
            frame = frame.f_back
        return False

    def _end_hook(self) -> None:
        if self._probe is not None:
            self._probe.remove()
            self._probe = None
            self._session.before_step.remove(PART, self.before_step)

    def _end_probe(self) -> None:
        self._end_hook()
        without = {key: ref() for key, ref in (self._without or {}).items()}
        names = parameter_names(self._session)
        for how in ("checkpoint", "graph", "disabled"):
            keys = [
                key
                for key, p in without.items()
                if p is not None
                and p.grad is None
                and p.requires_grad
                and self._ran.get(key) == how
                # The script changes it itself, as the codes of a codebook that are moving averages.
                and self._sum_of(p) == self._sums.get(key)
            ]
            if keys and how != "checkpoint" and self._are_copies(keys):
                continue
            if keys:
                self._session.report_anomaly(
                    "no-gradient-" + how,
                    names=[names.get(key, "parameter %d" % number) for number, key in enumerate(keys)],
                    step=self._first_examined,
                    trainable=len(names),
                )

    def _sum_of(self, parameter: Any) -> float | None:
        """Return the sum of a parameter's values; None for a shard, because the sum would need all ranks."""
        is_plain = type(parameter) is self._torch.nn.Parameter and parameter.layout is self._torch.strided
        return float(parameter.detach().double().sum()) if is_plain else None

    def _are_copies(self, keys: list[int]) -> bool:
        """Check whether the parameters with the ids `keys` have values near those of parameters with the same
        name and shape that have gradients, as in target networks and moving averages."""
        twins: dict[Any, list[Any]] = {}
        own: list[Any] = []
        for reference in self._session.models:
            model = reference()
            for name, parameter in model.named_parameters() if model is not None else ():
                kind = plain_name(name).partition(".")[2], tuple(parameter.shape)
                if id(parameter) in keys:
                    own.append((kind, parameter))
                elif parameter.grad is not None:
                    twins.setdefault(kind, []).append(parameter)
        # Biases are often all zero, and then say nothing.
        matrices = [(kind, parameter) for kind, parameter in own if parameter.dim() > 1]
        return all(
            any(self._is_near(parameter, twin) for twin in twins.get(kind, ()))
            for kind, parameter in matrices or own
        )

    def _is_near(self, parameter: Any, twin: Any) -> bool:
        with self._torch.no_grad():
            first, second = (p.reshape(-1)[:_MAX_COMPARED].float() for p in (parameter, twin))
            return bool((first - second).norm() <= _MAX_DISTANCE * second.norm())

    # What was frozen.

    def on_leader_chosen(self, optimizer: Any) -> None:
        """Start over with the new leading optimizer, and remember the parameters that DistributedDataParallel
        expects to have gradients."""
        self._end_hook()
        self.forget()
        self._wrapped = [
            [
                (plain_name(name), weakref.ref(parameter), self._may_be_frozen(model, parameter))
                for name, parameter in model.named_parameters()
                if id(parameter) in ids
            ]
            for model, ids in list(self._session.reduced_ids.items())
        ]

    def _may_be_frozen(self, model: Any, parameter: Any) -> bool:
        """Check whether a parameter is trainable now and can be frozen later without an error in `model`, the
        DistributedDataParallel that wraps it."""
        # Without a search for unused parameters, DistributedDataParallel fails then.
        return bool(parameter.requires_grad and getattr(model, "find_unused_parameters", False))

    def on_tick(self) -> None:
        """Report parameters that were frozen after DistributedDataParallel was created."""
        frozen: list[str] = []
        for wrapped in self._wrapped:
            now = [
                (name, may) for name, ref, may in wrapped if (p := ref()) is not None and not p.requires_grad
            ]
            # A whole network is frozen while another one trains, as a GAN's critic: nothing waits for it.
            if len(now) < len(wrapped):
                frozen += [name for name, may in now if not may]
        if frozen:
            self._wrapped = []
            self._session.report_anomaly("frozen-after-wrapping", names=frozen)


def _fixed_ids(model: Any, stepped: set[int]) -> set[int]:
    """Return the ids of the parameters that are left untrained on purpose, although they have gradients."""
    layers = [
        (module, {id(p) for p in module._parameters.values() if p is not None})
        for module in model.modules()
        if module._parameters
    ]
    trained = [layer for layer, ids in layers if ids & stepped]
    # Those of a part in evaluation mode beside what trains, as of a perceptual loss.
    if not any(layer.training for layer in trained):
        return set()
    return {key for layer, ids in layers if not layer.training for key in ids}


def _all_optimizers(torch: Any) -> list[Any]:
    """Return all optimizers that exist, including those that have not stepped."""
    # Once per model at most, and only if parameters seem to have no optimizer: it takes about 0.02 s.
    return [thing for thing in gc.get_objects() if issubclass(type(thing), torch.optim.Optimizer)]


def install(torch: Any, session: RankSession) -> None:
    """Examine sampled steps of the leading optimizer."""
    checks = ParameterChecks(torch, session)
    session.before_sampled_step.add(PART, checks.before_sampled_step)
    session.on_leader_chosen.add(PART, checks.on_leader_chosen)
    session.on_tick.add(PART, checks.on_tick)
    session.on_fork.add(PART, checks.forget)
    shared = SharedParameters(session, PART)
    session.on_first_step.add(PART, shared.on_first_step)
    session.on_fork.add(PART, shared.forget)
    unfreezing.install(session, PART, checks.restart)
    updates = UpdateChecks(torch, session)
    session.before_sampled_step.add(PART, updates.before_sampled_step)
    session.on_sampled_step.add(PART, updates.on_sampled_step)
    session.on_leader_chosen.add(PART, updates.on_leader_chosen)
    session.on_fork.add(PART, updates.forget)
