"""Handle state that forward passes change, for batches split into microbatches or across devices.

    before a batch    every chunk starts from the same state
    after a batch     values that are equal in all chunks are used as they are; floating-point values are
                      averaged, weighted by samples; counts of samples are added up; for other values that
                      differ, the first chunk's value is used

So a counter advances by one, spectral norm iterates once, and a moving average covers the whole batch, as
on one device. Batches 1, 2, 4, 8, ... are checked for state that changes; all other batches handle only the
state that has changed before, so a model without such state has no overhead there. Averages are not enough
for batch norms: see ../pipelining/stages.py.

Two kinds of modules depend on the order of samples: those that count and store samples (a memory bank with
its pointer), and those that initialize their weights from the first samples (ActNorm). Microbatches change
the state of such modules one after another, as if they were batches. Read slots.py and rank_state.py first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.memory.ledger import AnyLedger, NullLedger
from rankdeck.parallel.state.rank_state import CrossRankState, Groups, counts_samples, merge_values
from rankdeck.parallel.state.slots import (
    Slot,
    Tables,
    Values,
    copy_value,
    find_slots,
    is_same,
    is_state,
    module_tables,
    replica_tables,
    weight_sums,
)
from rankdeck.torch_compat.modules import BatchNorm

_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


class _StateTracker:
    """Tracker of the parts of a module's state that change, and of the values that they have after a
    batch."""

    def __init__(
        self, root: nn.Module, norms: Collection[nn.Module] | None = None, ledger: AnyLedger | None = None
    ) -> None:
        """Create the tracker; it ignores the buffers of the modules `norms`, by default all batch norms."""
        is_norm = (module for module in root.modules() if isinstance(module, BatchNorm))
        self._norms = frozenset(is_norm if norms is None else norms)
        self._root, self._ledger = root, ledger or NullLedger()
        self._batch_number = 0
        self._slots: dict[str, Slot] = {}
        self._changing_names: list[str] = []
        """Names of slots that have changed in any batch so far."""
        self._sequential_names: set[str] = set()
        """Names of slots that chunks change one after another."""
        self._tracked_names: list[str] = []
        """Names of the slots that are handled in this batch."""
        self._has_missed = False
        self._over_ranks = CrossRankState()
        self.changed_attributes: list[tuple[nn.Module, str, Any]] = []
        """Attributes that the last batch changed: module, name, value."""

    def _start(self, samples: Sequence[int]) -> None:
        self._batch_number += 1
        self._samples = list(samples)
        # The bit test is true for powers of two: batches 1, 2, 4, 8, ...
        self._is_inspecting = self._has_missed or self._batch_number & (self._batch_number - 1) == 0
        if self._is_inspecting:
            self._modules = list(self._root.modules())
            self._tables = [module_tables(module) for module in self._modules]
            self._slots = find_slots(self._root, self._tables, self._norms)
            self._changing_names = [name for name in self._changing_names if name in self._slots]
        names = self._slots if self._is_inspecting else [*self._changing_names, *self._sequential_names]
        self._originals = {
            name: self._slots[name].value(self._tables) for name in names if name in self._slots
        }
        self._tracked_names = [name for name in self._originals if name not in self._sequential_names]
        # Copies for the comparison are not part of the training's memory.
        with self._ledger.paused():
            self._initial_values = {name: copy_value(self._originals[name]) for name in self._tracked_names}
        self._versions = self._untracked_versions()

    def _untracked_versions(self) -> dict[str, int]:
        """Return the versions of tensors that have not changed so far and are not checked by value in this
        batch."""
        others = self._slots.keys() - self._originals.keys()
        return {name: _version(self._slots[name].value(self._tables)) for name in others}

    def _current_values(self, tables: Tables) -> Values:
        return {name: self._slots[name].value(tables) for name in self._tracked_names}

    def _record_changes(self, chunk_values: Sequence[Values]) -> None:
        """Add the slots that chunks have changed to the slots that are tracked in every later batch."""
        for name in self._tracked_names:
            values = [chunk[name] for chunk in chunk_values if name in chunk]
            is_kept = all(is_state(value, self._slots[name], self._samples[0]) for value in values)
            # By value and not by version: `.data` bypasses versions, and DDP's own broadcast raises all of
            # them.
            is_changed = not all(is_same(self._initial_values[name], value) for value in values)
            if is_kept and is_changed and name not in self._changing_names:
                self._changing_names.append(name)
        self._tracked_names = [name for name in self._changing_names if name not in self._sequential_names]
        self._initial_values = {name: self._initial_values[name] for name in self._tracked_names}

    def _merge(self, chunk_values: Sequence[Values], groups: Groups) -> None:
        """Set the module's state to the merged final values of the batch's chunks (`chunk_values`)."""
        results: Values = {}
        for name in self._tracked_names:
            left = [
                (chunk[name], n)
                for chunk, n in zip(chunk_values, self._samples, strict=True)
                if name in chunk
            ]
            results[name] = merge_values(
                self._initial_values[name], [v for v, _ in left], [n for _, n in left]
            )
        if groups and self._slots:
            results |= self._merge_over_ranks(groups, results)
        self.changed_attributes = []
        for name, original in self._originals.items():
            slot = self._slots[name]
            if name in results or name in self._sequential_names:
                self._write(slot, original, results.get(name, slot.value(self._tables)))
        # A tensor that changed between inspections makes the next batch an inspection.
        self._has_missed = not groups and any(
            _version(self._slots[name].value(self._tables)) != version
            for name, version in self._versions.items()
        )
        self._tracked_names, self._initial_values, self._originals = [], {}, {}

    def _merge_over_ranks(self, groups: Groups, results: Values) -> Values:
        over_ranks = self._over_ranks

        def value_of(name: str) -> Any:
            slot = self._slots.get(name)
            return results[name] if name in results else slot and slot.value(self._tables)

        if self._is_inspecting:
            samples = sum(self._samples)
            counting = {
                n: counts_samples(self._initial_values[n], value, samples) for n, value in results.items()
            }
            over_ranks.find_differences(groups, counting, value_of)
            self._changing_names += [
                name for name in over_ranks.differing_names if name not in self._changing_names
            ]
        values = {name: value_of(name) for name in over_ranks.differing_names}
        return over_ranks.merge(groups, values, self._initial_values, sum(self._samples))

    @torch.no_grad()
    def _write(self, slot: Slot, original: Any, value: Any) -> None:
        """Write the value into the original tensor if the layout matches, because other objects may refer to
        that tensor."""
        if isinstance(original, Tensor) and isinstance(value, Tensor) and _has_same_layout(value, original):
            if value is not original:
                original.copy_(value)
            value = original
        slot.set_value(self._tables, value)
        module, kind, key = slot.holders[0]
        if kind == "attribute":
            self.changed_attributes.append((self._modules[module], key, value))


def _has_same_layout(value: Tensor, original: Tensor) -> bool:
    return (value.shape, value.dtype) == (original.shape, original.dtype)


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) else -1


class ForwardState(_StateTracker):
    """State of a module that processes a batch's chunks one after another; each forward and backward pass
    runs inside the context `chunk`.

    The first chunk works on the module's own tensors. Each later chunk gets copies, and its backward pass
    gets the same copies again, because activation checkpointing changes state once more in the backward pass,
    as it does on one device.
    """

    def start(self, samples: Sequence[int]) -> None:
        """Start a batch split into chunks; chunk i has `samples[i]` samples, and empty chunks are ignored."""
        self._start(samples)
        self._has_inspected = not self._is_inspecting
        # Sums read all weights, so they are taken in inspected batches only.
        self._sums = (
            weight_sums(self._modules) if self._slots and self._is_inspecting and len(samples) > 1 else {}
        )
        self._chunk_values: list[Values] = [{} for _ in samples]
        self._current_chunk = 0

    def chunk(self, index: int, *, updates_state: bool = True) -> contextlib.AbstractContextManager[None]:
        """Return a context for a forward or backward pass of chunk `index`.

        If `updates_state` is false, the context leaves the state unchanged.
        """
        return self._run_chunk(index, updates_state) if self._tracked_names else _NOTHING

    @contextlib.contextmanager
    def _run_chunk(self, index: int, counts: bool) -> Iterator[None]:
        self._switch_to(index)
        saved = (
            {}
            if counts
            else {name: copy_value(value) for name, value in self._current_values(self._tables).items()}
        )
        yield
        for name, value in saved.items():
            self._slots[name].set_value(self._tables, value)
        if not self._has_inspected:
            self._has_inspected = True
            self._find_sequential_state()
            self._record_changes([self._current_values(self._tables)])

    def _switch_to(self, index: int) -> None:
        if index == self._current_chunk:
            return
        self._chunk_values[self._current_chunk] = self._current_values(self._tables)
        self._current_chunk = index
        chunk_values = self._chunk_values[index]
        for name in self._tracked_names:
            value = chunk_values[name] if name in chunk_values else copy_value(self._initial_values[name])
            self._slots[name].set_value(self._tables, value)

    def _find_sequential_state(self) -> None:
        """Record in `_sequential_names` the state that each chunk passes on to the next.

        Call this after the first chunk of a batch. Such state belongs to modules that store samples or that
        have changed their weights in the forward pass.
        """
        if len(self._samples) == 1:
            return
        sums = weight_sums(self._modules)
        module_indices = {number for number, total in self._sums.items() if total != sums[number]}
        counting, filled = set(), set()
        for name, before in self._initial_values.items():
            slot = self._slots[name]
            module, value = slot.holders[0][0], slot.value(self._tables)
            if counts_samples(before, value, self._samples[0]):
                counting.add(module)
            elif isinstance(value, Tensor) and value.numel() > 1 and not is_same(before, value):
                filled.add(module)
        module_indices |= counting & filled
        self._sequential_names |= {
            name for name, slot in self._slots.items() if slot.holders[0][0] in module_indices
        }
        self._tracked_names = [name for name in self._tracked_names if name not in self._sequential_names]

    def finish(self, groups: Groups = ()) -> None:
        """Merge the state after the batch's last backward pass.

        The ranks in `groups` process different samples of the batch; all of them call this together.
        """
        self._chunk_values[self._current_chunk] = self._current_values(self._tables)
        self._merge(self._chunk_values, groups)
        self._chunk_values = []


class ReplicaState(_StateTracker):
    """State of a module whose replicas run concurrently (dp), each in its own module tree."""

    def __init__(
        self, root: nn.Module, fetch: Callable[[Tensor, int], Tensor], ledger: AnyLedger | None = None
    ) -> None:
        """Create the state; `fetch(tensor, replica)` copies a tensor to the device of replica 0."""
        super().__init__(root, ledger=ledger)
        self._fetch = fetch
        self._replica_tables: Sequence[Tables] = ()

    def start(self, replicas: Sequence[nn.Module], samples: Sequence[int]) -> None:
        """Start a batch before the replicas' forward passes.

        Replicas share the module's plain attributes, so all replicas but the first get copies of attributes
        that may be changed in place.
        """
        self._start(samples)
        self._replica_tables = [replica_tables(replica) for replica in replicas]
        for tables in self._replica_tables[1:]:
            for name in self._tracked_names:
                slot = self._slots[name]
                if slot.holders[0][1] == "attribute":
                    slot.set_value(tables, copy_value(slot.value(tables)))

    def finish(self) -> None:
        """Merge the state after the replicas' backward passes; do nothing if no batch was started."""
        if not self._replica_tables:
            return
        if self._is_inspecting:
            self._record_changes(
                [self._replica_values(index, {"attribute"}) for index in range(len(self._replica_tables))]
            )
        replica_values = [
            self._replica_values(index, {"attribute", "buffer"}) for index in range(len(self._replica_tables))
        ]
        self._merge(replica_values, ())
        self._replica_tables = ()

    def _replica_values(self, index: int, kinds: Collection[str]) -> Values:
        """Return a replica's values, with buffers on the device of replica 0. For replicas other than
        replica 0, return only values whose kind (such as "buffer") is in `kinds`."""
        values: Values = {}
        for name, value in self._current_values(self._replica_tables[index]).items():
            kind = self._slots[name].holders[0][1]
            if not index or kind in kinds:
                moves = index and kind == "buffer" and isinstance(value, Tensor)
                values[name] = self._fetch(value, index) if moves else value
        return values


def module_copies(model: nn.Module, stages: Sequence[nn.Module]) -> dict[nn.Module, Sequence[nn.Module]]:
    """Map each module of the model to a sequence: the module, then its copy in each stage. Map each copy to
    the same sequence. Return an empty dict if no stage runs a copy of the model's code."""
    structures = [getattr(stage, "model", None) for stage in stages]
    trees = [list(structure.modules()) for structure in structures if isinstance(structure, nn.Module)]
    rows = zip(model.modules(), *trees, strict=True) if trees else ()
    return {module: row for row in rows for module in row}


def merge_attributes(
    states: Sequence[ForwardState],
    copies: Mapping[nn.Module, Sequence[nn.Module]],
    move: Callable[[Tensor, int], Tensor] = lambda tensor, _stage: tensor,
) -> None:
    """Copy attributes changed by stages into the model and into the other stages' `copies` of its modules.

    `move(tensor, stage)` copies a tensor to the device of a stage. If several stages have changed an
    attribute, the earliest stage's value is used, because later stages run all earlier layers on zeros.
    """
    attributes: dict[tuple[nn.Module, str], Any] = {}
    for state in states:
        for module, key, value in state.changed_attributes:
            if module in copies:
                attributes.setdefault((copies[module][0], key), value)
    for (home, key), value in attributes.items():
        for index, module in enumerate(copies[home]):
            if key in vars(module) and vars(module)[key] is not value:
                value_copy = copy_value(value)
                vars(module)[key] = (
                    move(value_copy, max(index - 1, 0)) if isinstance(value_copy, Tensor) else value_copy
                )
