"""Communication between a pipeline's ranks outside its training schedule.

This covers activations in evaluation, gradients of tied weights, and weights sent to rank 0. Rank and stage
numbers are those of the pipeline's group; `rank_of[i]` is the rank of stage i. All ranks of the group
call each function here together. Read strategies/pipeline.py next.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from rankdeck.parallel.pipelining.chain import StageInputs
from rankdeck.parallel.pipelining.costs import Boundary, with_shapes
from rankdeck.parallel.pipelining.cutting import CutModel
from rankdeck.parallel.tensor.gradients import full_tensor
from rankdeck.torch_compat.dtensors import local_part
from rankdeck.torch_compat.modules import split_state_dict


class StageCommunication:
    """Communication of one pipeline's ranks, in `group` (None: all ranks).

    `pipelines` lists the ranks of every pipeline of the run; all are cut at the same units. By default,
    this pipeline is the only one.
    """

    def __init__(
        self,
        cut: CutModel,
        rank_of: Sequence[int],
        device: torch.device,
        group: dist.ProcessGroup | None,
        pipelines: Sequence[Sequence[int]] | None = None,
    ) -> None:
        self.cut = cut
        self.rank_of = list(rank_of)
        self.device = device
        self.group = group
        self.rank = dist.get_rank(group)
        self.local_stages = [stage for stage, rank in enumerate(rank_of) if rank == self.rank]
        self._tied_names = self._make_tied_groups(pipelines or [range(dist.get_world_size(group))])

    def local_modules(self) -> set[nn.Module]:
        """Return all modules of this rank's stages."""
        return {module for stage in self.local_stages for module in self.cut.stages[stage].modules()}

    def _make_tied_groups(self, pipelines: Sequence[Sequence[int]]) -> list[tuple[str, Any]]:
        """Return the names of weights that this rank and other ranks hold, each with the group of these
        ranks.

        All ranks of the run create all groups in the same order. If a group were created by its members only,
        its name would depend on how many groups each member had created before, and members with different
        counts would wait for each other forever.
        """
        names = {id(parameter): name for name, parameter in self.cut.model.named_parameters()}
        # The ranks of this pipeline, by their numbers in the run.
        global_ranks = tuple(self._global_rank(rank) for rank in range(dist.get_world_size(self.group)))
        groups: dict[tuple[int, ...], Any] = {}
        tied = []
        # In the model's order, which is the same on all ranks.
        for parameter, stages in self.cut.shared_parameters():
            ranks = tuple(sorted({self.rank_of[stage] for stage in stages}))
            if len(ranks) == 1:
                continue
            if ranks not in groups:
                new_groups = {
                    tuple(ranks_of): dist.new_group([ranks_of[rank] for rank in ranks])
                    for ranks_of in pipelines
                }
                groups[ranks] = new_groups[global_ranks]
            if self.rank in ranks:
                tied.append((names[id(parameter)], groups[ranks]))
        return tied

    def tied_weights(self) -> list[tuple[nn.Parameter, dist.ProcessGroup]]:
        """Return this rank's weights that other ranks hold too, each with its group. They are looked up by
        name, because the hybrid strategy replaces weights."""
        return [(self.cut.model.get_parameter(name), group) for name, group in self._tied_names]

    def tied_weight_holders(self) -> dict[nn.Parameter, int]:
        """Return this rank's weights that other ranks hold too, each with the number of ranks that hold
        it."""
        return {parameter: group.size() for parameter, group in self.tied_weights()}

    def _global_rank(self, rank: int) -> int:
        return rank if self.group is None else dist.get_global_rank(self.group, rank)

    @property
    def is_last(self) -> bool:
        """Whether this rank holds the last stage, which computes the loss."""
        return self.rank_of[-1] == self.rank

    def sum_tied_gradients(self) -> None:
        """Sum the gradients of each tied weight over the stages that share it.

        If no stage has a gradient for a weight, its gradient stays None, and optimizers do not update it.
        """
        for parameter, group in self.tied_weights():
            # Checked before zeros fill it in: all ranks take part in the sum, even those without a gradient.
            lacks = parameter.grad is None
            num_found = torch.tensor(float(not lacks), device=self.device)
            dist.all_reduce(num_found, group=group)
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(local_part(parameter.grad), group=group)
            if lacks and not num_found:
                parameter.grad = None

    def tied_bytes(self) -> int:
        """Return the bytes that this rank sends per step for tied weights, according to the all-reduce
        formula."""
        total = 0.0
        for parameter, group in self.tied_weights():
            size = dist.get_world_size(group)
            total += 2 * (size - 1) / size * local_part(parameter).numel() * parameter.element_size()
        return round(total)

    def run(
        self,
        batches: Sequence[tuple[Any, int]],
        finish: Callable[[int, Any], None],
        *,
        learn_shapes: bool = False,
    ) -> None:
        """Run each micro-batch's forward pass through all stages; each stage finishes all micro-batches
        before the next stage starts.

        `batches` lists (inputs, number of samples) per micro-batch; `finish(index, outputs)` is called on the
        rank of the last stage. If `learn_shapes` is true, each stage first sends the shapes of its output to
        the next stage, and this rank stores the shapes of its stages' inputs and outputs in `cut.boundaries`;
        the batches must then have the size for which the model was cut.
        """
        local: list[StageInputs] = [None] * len(batches)
        sending: list[tuple[dist.Work | None, Tensor]] = []
        last, boundaries = len(self.rank_of) - 1, self.cut.boundaries
        for stage in self.local_stages:
            before, after = stage - 1, stage + 1
            for index, (inputs, samples) in enumerate(batches):
                received = local[index]
                if stage and self.rank_of[before] != self.rank:
                    if learn_shapes:
                        boundaries[stage] = self._receive_shapes(boundaries[stage], self.rank_of[before])
                    received = self.receive(boundaries[stage], samples, self.rank_of[before])
                output = self.cut.stages[stage](received if stage else None, inputs)
                if learn_shapes and stage != last:
                    boundaries[after] = with_shapes(boundaries[after], output)
                if stage == last:
                    finish(index, output)
                elif self.rank_of[after] == self.rank:
                    local[index] = output
                else:
                    if learn_shapes:
                        sending += self.send(
                            [_boundary_sizes(boundaries[after], self.device)], self.rank_of[after]
                        )
                    sending += self.send(output, self.rank_of[after])
        # Waiting at each send would keep this rank from its next microbatch.
        for work, _ in sending:
            if work is not None:
                work.wait()

    def _receive_shapes(self, boundary: Boundary, rank: int) -> Boundary:
        """Receive the sizes of the tensors from `rank`; `boundary` already has the right number of dims for
        each."""
        sizes = _boundary_sizes(boundary, self.device)
        dist.recv(sizes, self._global_rank(rank), group=self.group)
        left = iter(sizes.tolist())
        return tuple(
            replace(tensor_shape, shape=tuple(itertools.islice(left, len(tensor_shape.shape))))
            for tensor_shape in boundary
        )

    def receive(
        self, boundary: Boundary, samples: int, rank: int, group: dist.ProcessGroup | None = None
    ) -> tuple[Tensor, ...]:
        """Receive from `rank` a boundary's tensors for a batch of `samples` samples."""
        received = []
        for shape in boundary:
            tensor = shape.empty(self.device, samples)
            dist.recv(tensor, self._global_rank(rank), group=group or self.group)
            received.append(tensor)
        return tuple(received)

    def send(
        self, tensors: Sequence[Tensor], rank: int, group: dist.ProcessGroup | None = None
    ) -> list[tuple[dist.Work | None, Tensor]]:
        """Start sending tensors. Keep the returned pairs until their work is done: they keep the tensors
        alive."""
        target = self._global_rank(rank)
        sending = []
        for tensor in tensors:
            tensor = tensor.detach().contiguous()
            sending.append((dist.isend(tensor, target, group=group or self.group), tensor))
        return sending

    def gather_weights(self) -> dict[str, Tensor]:
        """Gather all weights on the group's rank 0, with those from other ranks in host memory, and return
        them under the model's names; other ranks get an empty dict."""
        local_state = split_state_dict(self.cut.model)[0]
        gathered: dict[str, Tensor] = {}
        for weight in self.cut.weights:
            owner = self.rank_of[weight.stages[0]]
            if owner == self.rank == 0:
                gathered[weight.name] = full_tensor(local_state[weight.name])
            elif owner == self.rank:
                dist.send(
                    full_tensor(local_state[weight.name]).contiguous(), self._global_rank(0), group=self.group
                )
            elif self.rank == 0:
                tensor = torch.empty(weight.shape, dtype=weight.dtype, device=self.device)
                dist.recv(tensor, self._global_rank(owner), group=self.group)
                gathered[weight.name] = tensor.cpu()
        return gathered


def _boundary_sizes(boundary: Boundary, device: torch.device) -> Tensor:
    """Return the sizes of all dims of all tensors, concatenated."""
    return torch.tensor(
        [size for tensor_shape in boundary for size in tensor_shape.shape], dtype=torch.int64, device=device
    )
