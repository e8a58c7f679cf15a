"""Finds parameters that become trainable while a script runs.

Gradual unfreezing sets `requires_grad`, adds parameter groups, or both. New parameters of the leading
optimizer are examined like its first ones (parameter_checks.py); parameters that were frozen and now have
a gradient, but belong to no optimizer, are reported here. Read parameter_checks.py first.
"""

from __future__ import annotations

import weakref

from .models import list_parameters
from .weight_digests import plain_name

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .session import RankSession

_NUM_WITH_GRADIENT = 6
"""Number of examined steps in a row in which parameters without an optimizer must have a gradient: an
optimizer that is created for them has stepped by then."""
_NUM_DENSE = 12
"""Number of steps to examine after a change."""
_MAX_CHANGES = 16


class UnfrozenParameters:
    """The leading optimizer's trainable parameters and the model's frozen ones, as observed so far."""

    def __init__(self, session: RankSession, examine: Callable[[dict[int, Any]], None]) -> None:
        self._session, self._examine = session, examine
        self.forget()

    def forget(self) -> None:
        self._trainable_ids: set[int] | None = None
        """Ids of the optimizer's parameters that have been trainable so far."""
        self._frozen: dict[int, Any] = {}
        """Weak references to the model's parameters that were frozen at first, by id."""
        self._sentinels: list[Any] = []
        """Weak references to the first and the last parameter that is still frozen."""
        self._num_groups = self._num_changes = self._num_with_gradient = 0

    def on_leader_chosen(self, _: Any) -> None:
        """Discard the recorded parameters, because another optimizer leads from now on."""
        self.forget()

    def before_step(self, optimizer: Any, leads: bool) -> None:
        """Look for a change: a new parameter group, or a frozen parameter that is trainable now."""
        if not leads or self._trainable_ids is None or self._num_changes >= _MAX_CHANGES:
            return
        # Only two parameters: layers are unfrozen from one end or all at once.
        is_changed = len(optimizer.param_groups) != self._num_groups
        for reference in self._sentinels:
            parameter = reference()
            is_changed = is_changed or (parameter is not None and parameter.requires_grad)
        if is_changed:
            self._num_changes += 1
            self._session.request_samples(_NUM_DENSE)
            self._choose_sentinels(optimizer)

    def examine(self, optimizer: Any) -> None:
        """Find and examine the parameters that have become trainable since the last call."""
        trainable = {id(p): p for p in list_parameters(optimizer) if p.requires_grad}
        if self._trainable_ids is None:
            self._trainable_ids = set(trainable)
            model = find_model(self._session, optimizer)
            parameters = [] if model is None else list(model.parameters())
            self._frozen = {id(p): weakref.ref(p) for p in parameters if not p.requires_grad}
            self._choose_sentinels(optimizer)
            return
        new = trainable.keys() - self._trainable_ids
        if new:
            # A script that freezes and unfreezes in turn adds nothing new.
            self._trainable_ids |= new
            self._examine({key: trainable[key] for key in new})
        if self._frozen:
            self._examine_unfrozen(optimizer)

    def _choose_sentinels(self, optimizer: Any) -> None:
        self._num_groups = len(optimizer.param_groups)
        frozen = [ref for ref in self._frozen.values() if (p := ref()) is not None and not p.requires_grad]
        self._sentinels = [frozen[0], frozen[-1]] if frozen else []

    def _examine_unfrozen(self, optimizer: Any) -> None:
        unfrozen = {
            key
            for key, reference in self._frozen.items()
            if (p := reference()) is not None and p.requires_grad and p.grad is not None
        }
        # Last, because it goes through all optimizers.
        if unfrozen:
            unfrozen -= stepped_ids(self._session)
        self._num_with_gradient = self._num_with_gradient + 1 if unfrozen else 0
        model = find_model(self._session, optimizer)
        if self._num_with_gradient != _NUM_WITH_GRADIENT or model is None:
            return
        self._session.report_anomaly(
            "gradient-without-optimizer",
            names=[plain_name(name) for name, p in model.named_parameters() if id(p) in unfrozen],
            step=max(1, self._session.step + 1 - _NUM_WITH_GRADIENT),
            unfrozen=1,
        )


def find_model(session: RankSession, optimizer: Any) -> Any:
    """Return the outermost trained module with parameters of `optimizer` or, if there is none, the outermost
    trained module."""
    models = [model for model in (ref() for ref in session.models) if model is not None]
    ids = {id(p) for p in list_parameters(optimizer)}
    own = (model for model in models if any(id(p) in ids for p in model.parameters()))
    return next(own, next(iter(models), None))


def stepped_ids(session: RankSession) -> set[int]:
    """Return the ids of the parameters of all optimizers that have stepped."""
    optimizers = [other for other in (ref() for ref in session.optimizers) if other is not None]
    return {id(p) for other in optimizers for p in list_parameters(other)}


def trains_vectors_only(session: RankSession) -> bool:
    """Check whether nothing but biases and norms is trained, as when a model is adapted to other data."""
    optimizers = [other for other in (ref() for ref in session.optimizers) if other is not None]
    return all(p.dim() < 2 for other in optimizers for p in list_parameters(other))


def install(session: RankSession, part: str, examine: Callable[[dict[int, Any]], None]) -> None:
    """Examine steps of the leading optimizer; call `examine` with its new trainable parameters, by id."""
    unfrozen = UnfrozenParameters(session, examine)
    session.before_step.add(part, unfrozen.before_step)
    session.on_sampled_step.add(part, unfrozen.examine)
    session.on_leader_chosen.add(part, unfrozen.on_leader_chosen)
    session.on_fork.add(part, unfrozen.forget)
