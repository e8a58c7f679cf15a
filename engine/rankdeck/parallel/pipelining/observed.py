"""Cut any model whose modules run in sequence; the sequence is found by observing one forward pass.

Examples are Hugging Face decoders like GPT-2 and Llama, BERT, ViT, ResNets of several libraries, and wrappers
around them. Units are the children of the model, with lists and Sequentials replaced by their items. A cut is
possible before a unit whose first argument carries gradients. A stage is a copy of the model's structure that
shares its weights and runs the model's own forward method, including its code between modules (masks, rotary
positions, flattening).

    tensors that cross a cut  the first argument of the unit after it, and every other tensor that was made
                              before the cut and is an argument of a unit after it (an encoder's output for
                              a decoder's blocks, position biases that the first block makes for all)
    units before the stage    return the tensors that cross, or placeholders: zeros of the right shape
    units of the stage        get the received tensors in place of arguments that come from earlier stages
    unit after the stage      ends the forward pass: its arguments are sent to the next stage
    weights                   those of the stage's units, and those of other units that the stage's results
                              depend on: an embedding table that is also the head's weight, a temperature, a
                              gate between layers

A model whose own code uses a tensor on both sides of a cut (a skip connection from stem to head) cannot be
cut this way: equality.py detects such models. Read chain.py first, traced.py for how such models are cut.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.base.errors import ModelError, RankdeckError
from rankdeck.base.phrases import phrase
from rankdeck.parallel.pipelining.chain import UNITS_ADVICE, Chain, StageInputs, detached_leaves
from rankdeck.parallel.pipelining.probing import (
    copy_sharing_weights,
    graph_leaves,
    output_tensors,
    probe_model,
    run_on_fake_tensors,
)
from rankdeck.parallel.pipelining.unit_recorder import (
    ObservedUnit,
    ReturnedTensor,
    UnitRecorder,
    boundary_values,
    returned_tensors,
)
from rankdeck.parallel.pytree import call_model, map_tensors, tensor_leaves
from rankdeck.torch_compat.dispatch import Kwargs
from rankdeck.torch_compat.modules import own_tensors

_LISTS = (nn.ModuleList, nn.Sequential)


class _StageEnd(Exception):  # noqa: N818 - it ends a stage's forward and is no error
    pass


@dataclass(frozen=True)
class ObservedUnits:
    """Modules that may be units: those that ran once in training, in call order, and those that never ran."""

    units: Sequence[ObservedUnit]
    unused: Sequence[str]


def observe_units(model: nn.Module, inputs: Any) -> ObservedUnits:
    """Run one forward pass in training mode and record which modules may be units."""

    def run(shapes: Any) -> ObservedUnits:
        watched, watch = copy_sharing_weights(model).train(), UnitRecorder()
        names = []
        for name, unit in _iter_candidates(watched, ""):
            names.append(name)
            unit.register_forward_pre_hook(functools.partial(watch.enter, name), with_kwargs=True)
            unit.register_forward_hook(functools.partial(watch.leave, name))
        units = watch.observed_units(call_model(watched, shapes))
        return ObservedUnits(units, [name for name in names if name not in watch.called_names()])

    with probe_model(model, inputs):
        return run_on_fake_tensors(run, inputs, model)


def _iter_candidates(module: nn.Module, prefix: str) -> Iterator[tuple[str, nn.Module]]:
    """Yield modules that may be units, with their names.

    A list (ModuleList or Sequential) is replaced by its items. A module that contains a list of several items
    at any depth is replaced by its children, unless the module is itself an item of a list.
    """
    for name, child in module.named_children():
        path = f"{prefix}{name}"
        in_list = isinstance(module, _LISTS)
        if type(child) in _LISTS or (not in_list and _holds_list(child)):
            yield from _iter_candidates(child, f"{path}.")
        elif any(True for _ in child.parameters()) or _is_plain_torch_module(child):
            yield path, child


def _holds_list(module: nn.Module) -> bool:
    return any(isinstance(inner, _LISTS) and len(inner) > 1 for inner in module.modules())


def _is_plain_torch_module(module: nn.Module) -> bool:
    """Check whether the class of a module is one of torch's own.

    Such a module without weights (pooling, dropout, activations) only transforms the tensor that it receives.
    Any other module without weights may serve several units (rotary positions), so every stage keeps it.
    """
    return type(module).__module__.startswith("torch.nn.")


class ObservedChain(Chain):
    """A chain whose units are groups of modules between possible cuts, named after their first modules."""

    def __init__(self, model: nn.Module, observed: ObservedUnits, num_samples: int, inputs: Any) -> None:
        units = observed.units
        self._starts = [index for index, unit in enumerate(units) if unit.can_cut or not index]
        super().__init__(model, [units[start].name for start in self._starts])
        self._observed = observed
        self._num_samples = num_samples
        self._inputs = inputs
        self._used: list[set[int]] = self._find_used()

    def _find_used(self) -> list[set[int]]:
        """Return, for each unit, the ids of the weights that its results depend on, in training or in
        evaluation."""

        def run(inputs: Any) -> list[set[int]]:
            used: list[set[int]] = [set() for _ in self.names]
            units = [self._stage(index, index + 1, None) for index in range(len(self))]
            for training in (True, False):
                received: StageInputs = None
                for unit, weights in zip(units, used, strict=True):
                    with contextlib.suppress(Exception):  # equality.py will refuse such a cut
                        results = output_tensors(unit.train(training)(received, inputs))
                        weights |= graph_leaves(results)
                        # Cloned, because autograd lets no unit change a leaf in place.
                        received = tuple(tensor.clone() for tensor in detached_leaves(results))
            return used

        with probe_model(self.model, self._inputs):
            return run_on_fake_tensors(run, self._inputs, self.model)

    def stage(self, start: int, end: int) -> nn.Module:
        return self._stage(start, end, set[int]().union(*self._used[start:end]))

    def _stage(self, start: int, end: int, used: set[int] | None) -> _ObservedStage:
        ends = [*self._starts, len(self._observed.units)]
        stage = _ObservedStage(
            self.model, self._observed.units, ends[start], ends[end], self._num_samples, self._inputs
        )
        stage.on_placeholder = self.on_placeholder
        if used is not None:
            stage.refuse_unused(self._observed.unused, used)
            stage.keep_only(used)
        return stage

    def with_cuts(self, starts: Sequence[int]) -> Chain:
        cut_indices = {self._starts[start] for start in starts}
        units = [
            replace(unit, can_cut=index in cut_indices) for index, unit in enumerate(self._observed.units)
        ]
        observed = replace(self._observed, units=units)
        return ObservedChain(self.model, observed, self._num_samples, self._inputs)


class _ObservedStage(nn.Module):
    on_placeholder: Callable[[Tensor, Iterable[str]], None] | None = None

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[ObservedUnit],
        start: int,
        end: int,
        num_samples: int,
        inputs: Any,
    ) -> None:
        """Build the stage; `inputs` is the batch of `num_samples` samples with which the model was
        observed."""
        super().__init__()
        self.model = copy_sharing_weights(model)
        self._num_samples = num_samples
        self._input_values, self._output_values = boundary_values(units, start), boundary_values(units, end)
        self._shape = units[start].arguments[0].shape if start else None
        self._received: dict[int, Tensor] = {}
        self._observed_sizes = [tensor.shape for tensor in tensor_leaves(inputs)]
        self._outputs: dict[int, Tensor] = {}
        self._units = [unit.name for unit in units[start:end]]
        self._other_units = [unit.name for unit in (*units[:start], *units[end:])]
        for unit in units[:start]:
            self._replace_forward(unit.name, functools.partial(self._return_placeholders, unit))
        for unit in units[start:end]:
            module = self.model.get_submodule(unit.name)
            module.register_forward_pre_hook(
                functools.partial(self._substitute_arguments, unit), with_kwargs=True
            )
            module.register_forward_hook(functools.partial(self._record_outputs, unit.returned))
        for unit in units[end:]:
            self._replace_forward(unit.name, functools.partial(self._end_stage, unit))

    def keep_only(self, used: set[int]) -> None:
        """Replace all tensors that the stage does not need with placeholders, from which the model's code can
        still read a weight's dtype.

        The stage keeps its own units, the weights whose ids are in `used`, and buffers outside of units,
        because every stage runs the code around the units.
        """
        own_modules = {module for name in self._units for module in self.model.get_submodule(name).modules()}
        other = {module for name in self._other_units for module in self.model.get_submodule(name).modules()}
        for path, module in self.model.named_modules():
            if module not in own_modules:
                tables = own_tensors(module) if module in other else own_tensors(module)[:1]
                for table in tables:
                    for name, tensor in list(table.items()):
                        if tensor is not None and id(tensor) not in used:
                            del table[name]
                            own_name = f"{path}.{name}" if path else name
                            blank = self._make_placeholder(
                                own_name, tensor.shape, tensor.dtype, tensor.device
                            )
                            object.__setattr__(module, name, blank)

    def refuse_unused(self, idle: Sequence[str], used: set[int]) -> None:
        """Make each module named in `idle`, which did not run in the observed forward pass, raise an error
        when called, unless all of its weights are in `used`."""
        for name in idle:
            module = self.model.get_submodule(name)
            if not used.issuperset(map(id, module.parameters())):
                module.forward = _refuse_module

    def forward(self, received: StageInputs, inputs: Any) -> Any:
        self._received = dict(zip(self._input_values, received or (), strict=True))
        # Received tensors that later stages need pass through.
        self._outputs = {
            value: self._received[value] for value in self._output_values if value in self._received
        }
        try:
            output = call_model(self.model, inputs)
            if self._output_values:
                raise _other_modules_error()
            return output
        except _StageEnd:
            if not self._outputs.keys() >= set(self._output_values):
                raise _other_modules_error() from None
            return tuple(self._outputs[value] for value in self._output_values)
        except (IndexError, ValueError, RuntimeError) as error:
            is_of_shapes = not isinstance(error, RankdeckError | torch.OutOfMemoryError)
            if not (is_of_shapes and self._has_other_sizes(inputs)):
                raise
            raise _other_shapes_error(error) from error
        finally:
            # They would keep the activations alive until the next microbatch.
            self._received, self._outputs = {}, {}

    def _replace_forward(self, name: str, forward: Callable[..., Any]) -> None:
        """Replace the forward method of the unit `name`, which is in another stage, with `forward`; disable
        the unit's hooks. The unit's submodules stay unchanged."""
        unit = self.model.get_submodule(name)
        kind: Any = type(unit)
        # Python looks up __call__, which runs the hooks, on the class.
        unit.__class__ = _class_without_hooks(kind)
        unit.forward = forward

    def _substitute_arguments(
        self, unit: ObservedUnit, _module: nn.Module | None, args: tuple[Any, ...], kwargs: Kwargs
    ) -> tuple[tuple[Any, ...], Kwargs]:
        """Replace a unit's arguments with received tensors, and store the arguments that later stages
        need."""
        values: dict[Any, Any] = {**dict(enumerate(args)), **kwargs}
        for argument in [argument for argument in unit.arguments if argument.key is not None]:
            if argument.value_id in self._received:
                values[argument.key] = self._received[argument.value_id]
            elif argument.value_id in self._output_values:
                self._outputs[argument.value_id] = values[argument.key]
        return tuple(values[index] for index in range(len(args))), {name: values[name] for name in kwargs}

    def _record_outputs(self, returned: Any, _module: nn.Module, _args: tuple[Any, ...], output: Any) -> None:
        """Record the tensors of a unit's `output` that later stages need."""
        for record, tensor in zip(returned_tensors(returned), tensor_leaves(output), strict=False):
            if record.value_id in self._output_values:
                self._outputs.setdefault(record.value_id, tensor)

    def _end_stage(self, unit: ObservedUnit, *args: Any, **kwargs: Any) -> Any:
        """End the forward pass at the first unit after the stage: its arguments complete the stage's
        output."""
        self._substitute_arguments(unit, None, args, kwargs)
        raise _StageEnd

    def _return_placeholders(self, unit: ObservedUnit, *_args: Any, **_kwargs: Any) -> Any:
        """Return the received tensors, or placeholders of their shapes, for a unit before the stage."""
        return map_tensors(unit.returned, functools.partial(self._make_output, unit.name), ReturnedTensor)

    def _make_output(self, name: str, returned: ReturnedTensor) -> Tensor:
        if returned.value_id in self._received:
            return self._received[returned.value_id]
        first = self._received[self._input_values[0]]
        return self._make_placeholder(
            name, self._resize_shape(returned.shape, first.shape), returned.dtype, first.device
        )

    def _resize_shape(self, shape: torch.Size, now: torch.Size) -> torch.Size:
        """Adapt a shape from the observed batch to the current batch, whose first received tensor has shape
        `now`."""
        assert self._shape is not None
        if shape == self._shape:
            return now
        sizes: dict[int, set[int]] = {}
        for was, size in zip(self._shape, now, strict=True):
            sizes.setdefault(was, set()).add(size)
        by_sample = shape[:1] == (self._num_samples,)
        return torch.Size(
            now[0] if by_sample and not dim else min(sizes[was]) if len(sizes.get(was, ())) == 1 else was
            for dim, was in enumerate(shape)
        )

    def _has_other_sizes(self, inputs: Any) -> bool:
        """Check whether a batch differs from the observed batch in any size except the number of samples."""
        return any(
            was[1:] != tensor.shape[1:] or (was[:1] != tensor.shape[:1] and was[0] != self._num_samples)
            for was, tensor in zip(self._observed_sizes, tensor_leaves(inputs), strict=False)
        )

    def _make_placeholder(
        self, name: str, shape: torch.Size, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Make zeros that take no memory.

        Results computed from the zeros are dropped. If the stage's output nevertheless depends on such a
        result, a gradient reaches the zeros, which raises an error.
        """
        # One number in memory for any shape.
        blank = torch.zeros((), dtype=dtype, device=device).expand(shape)
        if dtype.is_floating_point:
            blank.requires_grad_()
            blank.register_hook(functools.partial(_refuse_gradient, name))
        if self.on_placeholder is not None:
            self.on_placeholder(blank, [name])
        return blank


@functools.cache
def _class_without_hooks(kind: Any) -> Any:
    """Return a subclass of `kind` whose calls skip hooks, since the tensors that hooks would change are on
    another stage."""

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self.forward(*args, **kwargs)

    return type(kind.__name__, (kind,), {"__call__": run, "__module__": kind.__module__})


def _refuse_gradient(name: str, _gradient: Tensor) -> None:
    raise ModelError(
        phrase(
            "A stage now needs {name} from another stage, but did not need it when the model was cut.",
            name=name,
        ),
        path="strategy.use",
        advice=phrase('Run the same operations for all batches, or set strategy.use = "ddp" or "fsdp".'),
    )


def _other_modules_error() -> ModelError:
    return ModelError(
        phrase("The model runs different modules for this batch than for the batch used to cut it."),
        path="strategy.use",
        advice=phrase('Run the same modules for all batches, or set strategy.use = "ddp" or "fsdp".'),
    )


def _other_shapes_error(error: Exception) -> ModelError:
    return ModelError(
        phrase(
            "This batch's sizes differ from those of the batch used to cut the model, so a "
            "stage cannot infer another stage's shapes ({reason}).",
            reason=(str(error).strip().splitlines() or [type(error).__name__])[0],
        ),
        path="strategy.use",
        advice=UNITS_ADVICE,
    )


def _refuse_module(*_args: Any, **_kwargs: Any) -> None:
    raise _other_modules_error()
