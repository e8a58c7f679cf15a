"""A model cut into stages: which units each stage runs, which weights it holds, what crosses each cut.

Weights keep the model's own names: a stage holds the very Parameters of the model, and a name is looked up by
the tensor behind it. A weight that several stages use (a tied embedding) is held by each of them. A tensor
that no unit uses belongs to the first stage. Read communication.py next, then the strategies.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.config.catalog import CutOptions
from rankdeck.parallel.collectives.broadcast import found_once
from rankdeck.parallel.pipelining import costs
from rankdeck.parallel.pipelining.chain import Chain
from rankdeck.parallel.pipelining.costs import Boundary
from rankdeck.parallel.pipelining.cuts import balanced_cuts, given_cuts
from rankdeck.parallel.pipelining.find import find_chain
from rankdeck.torch_compat.modules import own_buffers, own_tensors, split_state


@dataclass(frozen=True)
class Weight:
    """One entry of the model's state dict: what it is, and the stages that hold it, the owner first."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    stages: tuple[int, ...]


class CutModel:
    """`stages[i]` is called as chain.py says. `boundaries[i]` enters it, for batches of the sample's size;
    behind the last stage there is one more, which is empty."""

    def __init__(self, chain: Chain, cuts: list[int], boundaries: list[Boundary]) -> None:
        starts, ends = [0, *cuts], [*cuts, len(chain)]
        self.model = chain.model
        self.takes_any_batch = chain.takes_any_batch
        self.reads_inputs = chain.reads_inputs
        self.units = [chain.names[start:end] for start, end in zip(starts, ends, strict=True)]
        self.boundaries = [*(boundaries[start] for start in starts), ()]
        # What tracing made of the model's modules has modes of its own, which begin as in evaluation.
        self.stages = [chain.stage(start, end).train() for start, end in zip(starts, ends, strict=True)]
        self._copies: list[tuple[Any, Tensor]] = []
        self._holders = self._find_holders(chain.owners, ends)
        self.weights = [
            Weight(name, tensor.shape, tensor.dtype, self._holders.get(id(tensor), (0,)))
            for name, tensor in split_state(self.model)[0].items()
        ]

    def _find_holders(self, owners: dict[int, int], ends: list[int]) -> dict[int, tuple[int, ...]]:
        """By identity, the stages that hold a tensor; first the one that a buffer's value is taken from."""
        holders: dict[int, tuple[int, ...]] = {}
        for index, stage in enumerate(self.stages):
            for tensor in weights_and_buffers(stage):
                holders[id(tensor)] = (*holders.get(id(tensor), ()), index)
        for buffer, unit in owners.items():
            owner = bisect.bisect(ends, unit)
            others = tuple(index for index in holders.get(buffer, ()) if index != owner)
            holders[buffer] = (owner, *others)
        return holders

    def home(self, tensor: Tensor) -> int:
        """The stage whose tensor is the model's; other stages that hold it have copies."""
        return self._holders.get(id(tensor), (0,))[0]

    def separate_buffers(self, stages: Iterable[int]) -> None:
        """Stages of one process count apart: of those that hold a buffer, the first keeps the model's."""
        together = list(stages)
        for index in together:
            own: dict[int, Tensor] = {}
            for table in [own_buffers(module) for module in self.stages[index].modules()]:
                for name, buffer in table.items():
                    holders = self._holders.get(id(buffer), (index,))
                    if buffer is not None and next(s for s in holders if s in together) != index:
                        table[name] = own.setdefault(id(buffer), buffer.clone())
                        self._copies.append((table[name], buffer))

    @torch.no_grad()
    def renew_copies(self) -> None:
        """At the start of a forward every stage has what the model's buffers hold."""
        for copy, buffer in self._copies:
            copy.copy_(buffer)

    def shared_parameters(self) -> list[tuple[nn.Parameter, tuple[int, ...]]]:
        """Parameters that several stages hold, with those stages, in the model's order."""
        held = [(parameter, self._holders.get(id(parameter), (0,))) for parameter in self.model.parameters()]
        return [(parameter, stages) for parameter, stages in held if len(stages) > 1]

    def held_by(self, stages: Iterable[int]) -> list[Tensor]:
        """Parameters and buffers that any of the stages needs, each once."""
        held = [tensor for stage in set(stages) for tensor in weights_and_buffers(self.stages[stage])]
        held += self.unused_by(stages)
        return list({id(tensor): tensor for tensor in held}.values())

    def unused_by(self, stages: Iterable[int]) -> list[Tensor]:
        """What of `held_by` no stage's units use. Ask before weights are replaced."""
        if 0 not in stages:
            return []
        return [tensor for tensor in weights_and_buffers(self.model) if id(tensor) not in self._holders]

    def keep_only(self, stages: Iterable[int]) -> None:
        """Drop what other stages hold: the model stays a tree of the same names with holes in it."""
        kept = {id(tensor) for tensor in self.held_by(stages)}
        for module in self.model.modules():
            for tensors in own_tensors(module):
                for name, tensor in tensors.items():
                    if tensor is not None and id(tensor) not in kept:
                        tensors[name] = None
        wanted = set(stages)
        self.stages = [stage if index in wanted else nn.Module() for index, stage in enumerate(self.stages)]


def cut_model(
    model: nn.Module,
    num_stages: int,
    options: CutOptions,
    inputs: Any,
    num_samples: int,
    *,
    device: torch.device,
    known: dict[str, Any] | None = None,
    read: Callable[[Any], Sequence[Tensor]] | None = None,
) -> CutModel:
    """The model in `num_stages` stages, cut as strategy.cuts or strategy.balance say.

    `inputs` is a batch of `num_samples` as each stage will see it; `read` gives what the loss reads of
    what the model returns for it, where gradients travel from stage to stage. `known` is as of equality.py.
    All ranks of the run call this together.

    Raises: ModelError, ConfigError.
    """
    chain = find_chain(model, inputs, num_samples, known)
    holds_weights = chain.holds_weights()
    if options.cuts:
        cuts = given_cuts(options.cuts, chain.names, num_stages, holds_weights)
    else:
        # Times measured on one rank: every pipeline of a mesh must cut alike.
        measured = found_once(lambda: costs.unit_costs(chain, options.balance, inputs, device))
        cuts = balanced_cuts(measured, num_stages, holds_weights)

    def boundaries() -> list[Boundary]:
        found = costs.boundaries(chain, inputs, num_samples)
        return found if read is None else costs.with_gradients(found, chain, inputs, read)

    return CutModel(chain, cuts, found_once(boundaries))


def weights_and_buffers(module: nn.Module) -> list[Tensor]:
    """Parameters, then buffers, each once."""
    return [*module.parameters(), *module.buffers()]


def move_in_place(tensors: Iterable[Tensor], device: torch.device) -> None:
    """Tensors on a device, still the same objects: stages and the model go on sharing them."""
    for tensor in tensors:
        tensor.data = tensor.data.to(device)
