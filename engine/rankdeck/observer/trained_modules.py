"""Finds the module that really trains inside a model, and its layers that depend on the mode.

A model may be wrapped, or be part of a larger module that is never called itself: the module that really
trains is the smallest one that contains all trained parameters and all layers that behave
differently in training and in evaluation. Frozen submodules do not count: their mode is chosen on purpose.
"""

from __future__ import annotations

import weakref

from .models import list_parameters, unwrapped

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from .session import RankSession

_MAX_DEPTH = 32


class TrainedModules:
    """The modules that contain trainable parameters of the leading optimizer."""

    def __init__(self, torch: Any, session: RankSession) -> None:
        self._session = session
        modules = torch.nn.modules
        self._dropouts = modules.dropout._DropoutNd
        self._norms = modules.batchnorm._NormBase
        self._recurrent = modules.rnn.RNNBase
        self._attention = modules.activation.MultiheadAttention
        self.forget()

    def forget(self) -> None:
        self.parameter_ids: set[int] = set()
        self._module_ids: set[int] = set()
        """Ids of the modules that contain a trained parameter."""
        self.path: list[Any] = []
        """Weak references to the modules from the model to the module that really trains."""
        self._known_for: Any = None

    @property
    def root(self) -> Any:
        """The module that really trains; None if the model is unknown or gone."""
        return self.path[-1]() if self.path else None

    def refresh(self, optimizer: Any) -> None:
        """Find the modules again if the model or the number of trainable parameters has changed."""
        parameters = [p for p in list_parameters(optimizer) if p.requires_grad]
        models = [model for model in (ref() for ref in self._session.models) if model is not None]
        known_for = [len(parameters), *map(id, models)]
        if known_for == self._known_for and self.root is not None:
            return
        self._known_for = known_for
        self.parameter_ids = {id(p) for p in parameters}
        self._module_ids = set()
        model = next((m for m in models if any(id(p) in self.parameter_ids for p in m.parameters())), None)
        if model is None:
            model = models[0] if models else None
        else:
            self._collect(model, 0)
        self.path = [] if model is None else [weakref.ref(module) for module in self._descend(model)]

    def _collect(self, module: Any, depth: int) -> bool:
        """Collect the modules that contain trained parameters; return whether `module` is one of them."""
        trains = any(id(p) in self.parameter_ids for p in module._parameters.values())
        for child in module._modules.values() if depth < _MAX_DEPTH else ():
            if child is not None:
                trains = self._collect(child, depth + 1) or trains
        if trains:
            self._module_ids.add(id(module))
        return trains

    def _descend(self, model: Any) -> list[Any]:
        """Return the chain of modules from the model down to the one that really trains."""
        module = unwrapped(model)
        path = [model, module]
        for _ in range(_MAX_DEPTH):
            if any(id(p) in self.parameter_ids for p in module._parameters.values()):
                break
            children = [child for child in module._modules.values() if child is not None]
            trained = [child for child in children if id(child) in self._module_ids]
            if len(trained) != 1 or self.is_mode_dependent(trained[0]):
                break
            # Dropout beside the only trained child acts on it, so both belong together.
            beside = [child for child in children if child is not trained[0]]
            if any(True for child in beside for _ in self.iter_layers(child, 1)):
                break
            module = unwrapped(trained[0])
            path += [trained[0], module]
        return path

    def trains(self, module: Any) -> bool:
        """Check whether a module contains trained parameters."""
        return id(module) in self._module_ids

    def is_frozen(self, module: Any) -> bool:
        """Check whether a module has parameters, none of which is trained."""
        # Flattened parameters of a sharded model are in none of its modules.
        if not self._module_ids or self.trains(module):
            return False
        return next(iter(module.parameters()), None) is not None

    def is_norm(self, module: Any) -> bool:
        """Check whether a module is a batch or instance norm that tracks running statistics."""
        return isinstance(module, self._norms) and bool(module.track_running_stats)

    def is_mode_dependent(self, module: Any) -> bool:
        """Check whether this layer itself behaves differently in training and in evaluation."""
        if isinstance(module, self._dropouts):
            return bool(module.p > 0)
        if isinstance(module, self._recurrent):
            return bool(module.dropout > 0 and module.num_layers > 1)
        if isinstance(module, self._attention):
            return bool(module.dropout > 0)
        return self.is_norm(module) or _is_drop_path(module)

    def iter_layers(self, module: Any, depth: int = 0) -> Iterator[Any]:
        """Yield the mode-dependent layers of a module, except those of frozen submodules."""
        if depth > _MAX_DEPTH or (depth and self.is_frozen(module)):
            return
        if self.is_mode_dependent(module):
            yield module
        for child in module._modules.values():
            if child is not None:
                yield from self.iter_layers(child, depth + 1)

    def count_layers(self, module: Any, training: bool) -> list[str]:
        """Return how many mode-dependent layers of each class a module contains, as in ["2 Dropout"]. Only
        layers in training mode count or, if `training` is False, only those in evaluation mode."""
        kinds: dict[str, int] = {}
        for layer in self.iter_layers(module):
            if layer.training is training:
                kinds[type(layer).__name__] = kinds.get(type(layer).__name__, 0) + 1
        return ["%d %s" % (count, name) for name, count in kinds.items()]


def _is_drop_path(module: Any) -> bool:
    """Check whether `module` seems to be a layer from outside torch that drops paths or values at random."""
    if "drop" not in type(module).__name__.lower() or module._modules:
        return False
    shares = (getattr(module, name, None) for name in ("p", "drop_prob", "drop_rate"))
    return any(isinstance(share, (int, float)) and share > 0 for share in shares)
