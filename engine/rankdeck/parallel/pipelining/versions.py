"""Versions of a stage's weights: the newest, which the optimizer updates, and the older versions with which
the microbatches in flight started.

A version is a set of Parameters with its own storages. The newest version shares the storages of the module's
own weights. If the newest version is still needed at an update, the module gets copies to update, and the old
storages stay unchanged. So p versions take p times the memory of the weights, and an update copies
the weights only if the version that it replaces is still needed. Read strategies/pipeline_async.py next.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from rankdeck.torch_compat.modules import own_parameters


class WeightVersions:
    """Live versions of a module's weights; version v is their value after v updates."""

    def __init__(self, module: nn.Module) -> None:
        self._weights = [parameter for parameter in module.parameters() if parameter.requires_grad]
        index_of = {id(parameter): index for index, parameter in enumerate(self._weights)}
        self._weight_locations = [
            (inner, name, index_of[id(parameter)])
            for inner in module.modules()
            for name, parameter in own_parameters(inner).items()
            if parameter is not None and id(parameter) in index_of
        ]
        self.newest = 0
        self._live_versions = {0: self._share_storages()}
        self.max_live = 1

    @property
    def current_weights(self) -> list[nn.Parameter]:
        """The weights that the optimizer updates."""
        return self._weights

    def weights(self, version: int) -> list[nn.Parameter]:
        return self._live_versions[version]

    def tensors(self) -> list[Tensor]:
        """Return the weights of all live versions, one tensor per storage."""
        return [weight for version in self._live_versions.values() for weight in version]

    def _share_storages(self) -> list[nn.Parameter]:
        # `.data` shares the storage but not the version counter: an update of the copies that the module gets
        # must not make autograd believe that these were changed.
        return [nn.Parameter(parameter.data) for parameter in self._weights]

    @contextmanager
    def use_version(self, version: int) -> Iterator[None]:
        """Make the module use the weights of a version inside the context, in forward passes and in backward
        passes that recompute them."""
        weights = self._live_versions[version]
        for module, name, index in self._weight_locations:
            own_parameters(module)[name] = weights[index]
        try:
            yield
        finally:
            for module, name, index in self._weight_locations:
                own_parameters(module)[name] = self._weights[index]

    def prepare_update(self, needed: set[int]) -> None:
        """Protect the newest version from the next update if that version is in `needed`."""
        if self.newest in needed:
            for parameter in self._weights:
                parameter.data = parameter.data.clone()

    def drop_old(self) -> None:
        """Drop all versions but the newest."""
        self._live_versions = {self.newest: self._live_versions[self.newest]}

    def finish_update(self, needed: set[int]) -> None:
        self.newest += 1
        self._live_versions = {
            version: self._live_versions[version] for version in needed if version != self.newest
        }
        self._live_versions[self.newest] = self._share_storages()
        self.max_live = max(self.max_live, len(self._live_versions))
