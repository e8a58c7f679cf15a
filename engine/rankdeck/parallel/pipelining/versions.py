"""Versions of a stage's weights: those that the optimizer updates, and older ones that microbatches under way
began with.

A version is a set of Parameters over its own storages. The newest shares the storages of the module's own
weights; when an update comes and the newest is still needed, the module gets copies to update, and the old
storages stay as they are. So p versions cost p times the weights, and an update copies only what it must.
Read strategies/pipeline_async.py next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from rankdeck.torch_compat.modules import own_parameters


class WeightVersions:
    """Version v is what the weights were after v updates."""

    def __init__(self, module: nn.Module) -> None:
        self._own = [parameter for parameter in module.parameters() if parameter.requires_grad]
        index_of = {id(parameter): index for index, parameter in enumerate(self._own)}
        self._places = [
            (inner, name, index_of[id(parameter)])
            for inner in module.modules()
            for name, parameter in own_parameters(inner).items()
            if parameter is not None and id(parameter) in index_of
        ]
        self.newest = 0
        self._alive = {0: self._shared()}
        self.most_alive = 1

    @property
    def own(self) -> list[nn.Parameter]:
        """The weights that the optimizer knows."""
        return self._own

    def weights(self, version: int) -> list[nn.Parameter]:
        return self._alive[version]

    def tensors(self) -> list[Tensor]:
        """Every storage that is held for weights, as tensors."""
        return [weight for version in self._alive.values() for weight in version]

    def _shared(self) -> list[nn.Parameter]:
        # `.data` shares the storage and not the count of changes: an update of the copies that the module
        # gets must not make autograd believe that these were changed.
        return [nn.Parameter(parameter.data) for parameter in self._own]

    @contextmanager
    def using(self, version: int) -> Iterator[None]:
        """The module runs on a version, in forward and where a backward computes forwards again."""
        weights = self._alive[version]
        for module, name, index in self._places:
            own_parameters(module)[name] = weights[index]
        try:
            yield
        finally:
            for module, name, index in self._places:
                own_parameters(module)[name] = self._own[index]

    def before_update(self, needed: set[int]) -> None:
        """Keep the newest as it is, where it is among the versions that are needed from here on."""
        if self.newest in needed:
            for parameter in self._own:
                parameter.data = parameter.data.clone()

    def forget_old(self) -> None:
        """Only the newest is needed from here on."""
        self._alive = {self.newest: self._alive[self.newest]}

    def after_update(self, needed: set[int]) -> None:
        self.newest += 1
        self._alive = {version: self._alive[version] for version in needed if version != self.newest}
        self._alive[self.newest] = self._shared()
        self.most_alive = max(self.most_alive, len(self._alive))
