"""Made-up samples that fit a model's inputs, fixed by a seed, with targets that can be learnt.

Two kinds, by what the model takes:
    numbers   one of `classes` patterns plus noise; the target is the pattern's class
    tokens    sequences in which each token follows from the one before by a fixed table, with a jump now and
              then; the target is the next token

At most 64 MiB of distinct samples are made; sample i of a larger set repeats one of them. `masked` is the
share of targets set to -100.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankdeck.base.errors import DataError
from rankdeck.base.phrases import phrase
from rankdeck.config.catalog import IGNORE_INDEX, SyntheticArgs
from rankdeck.data.base import DataSpec, TensorSamples

MAX_POOL_BYTES = 64 * 2**20
PATTERN_NUMBERS = 1024
JUMP_PROBABILITY = 0.1
HELDOUT_DIVISOR = 8
DATA_SEED = 20240229


@dataclass(frozen=True)
class InputSpec:
    """One sample's input as a model takes it. With a vocabulary, inputs are tokens (length,); else numbers of
    any shape.
    """

    input_shape: tuple[int, ...]
    input_dtype: torch.dtype = torch.float32
    classes: int | None = None
    vocabulary: int | None = None


def input_spec(model: str, model_args: Mapping[str, Any]) -> InputSpec:
    """What a catalogue model takes, given its arguments so far.

    Raises: DataError for a model that is not in the catalogue: its inputs are not known.
    """
    classes = model_args.get("classes")
    if model == "mlp":
        return InputSpec((64,), classes=classes)
    if model == "gpt":
        return InputSpec(
            (model_args.get("context", 128),), torch.int64, vocabulary=model_args.get("vocabulary") or 256
        )
    if model == "resnet":
        side = 32 if model_args.get("stem") == "small" else 224
        return InputSpec((model_args.get("in_channels", 3), side, side), classes=classes)
    raise DataError(
        phrase(
            'data.use = "synthetic" fits the catalogue\'s models, and model.use = "{model}" is not one of '
            "them.",
            model=model,
        ),
        path="data.use",
        advice=phrase('Give the model data of its own: data.use = "path/to/file.py:factory".'),
    )


class Synthetic:
    """Inputs as `spec` says, targets () for classes or (length,) for tokens, int64."""

    def __init__(self, args: Mapping[str, Any] | None = None, spec: InputSpec | None = None) -> None:
        self.args = SyntheticArgs.model_validate(dict(args or {}))
        self.spec = spec or InputSpec((64,))
        self.classes = None if self.spec.vocabulary else self.args.classes or self.spec.classes or 10
        self.num_heldout = max(1, self.args.samples // HELDOUT_DIVISOR)

    def describe(self) -> DataSpec:
        return DataSpec(
            input_shape=self.spec.input_shape,
            input_dtype=self.spec.input_dtype,
            target_shape=self.spec.input_shape if self.spec.vocabulary else (),
            target_dtype=torch.int64,
            classes=self.classes,
            vocabulary=self.spec.vocabulary,
            may_mask=self.args.masked > 0,
            train_samples=self.args.samples,
            heldout_samples=self.num_heldout,
        )

    def prepare(self) -> None:
        """Nothing to make: samples are made in memory."""

    def load(self) -> tuple[TensorSamples, TensorSamples]:
        return self._samples(self.args.samples, stream=1), self._samples(self.num_heldout, stream=2)

    def _samples(self, num_samples: int, stream: int) -> TensorSamples:
        # A stream of its own for the rule: held-out samples obey the same one.
        rule = torch.Generator().manual_seed(DATA_SEED)
        generator = torch.Generator().manual_seed(DATA_SEED + stream)
        bytes_each = math.prod(self.spec.input_shape) * self.spec.input_dtype.itemsize
        rows = min(num_samples, max(1, MAX_POOL_BYTES // bytes_each))
        if self.spec.vocabulary:
            inputs, targets = _tokens(rows, self.spec.input_shape[0], self.spec.vocabulary, rule, generator)
        else:
            assert self.classes is not None
            inputs, targets = _numbers(rows, self.spec.input_shape, self.classes, rule, generator)
        if self.args.masked:
            targets[torch.rand(targets.shape, generator=generator) < self.args.masked] = IGNORE_INDEX
        return TensorSamples(inputs.to(self.spec.input_dtype), targets, num_samples)


def _numbers(
    rows: int, shape: tuple[int, ...], classes: int, rule: torch.Generator, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs (rows, *shape) and targets (rows,). A pattern longer than PATTERN_NUMBERS repeats, so that many
    classes stay small.
    """
    numbers = math.prod(shape)
    patterns = torch.randn(classes, min(numbers, PATTERN_NUMBERS), generator=rule)
    targets = torch.randint(classes, (rows,), generator=generator)
    inputs = torch.randn(rows, numbers, generator=generator).mul_(0.5)
    for start in range(0, numbers, PATTERN_NUMBERS):
        piece = inputs[:, start : start + PATTERN_NUMBERS]
        piece += patterns[targets, : piece.shape[1]]
    return inputs.view(rows, *shape), targets


def _tokens(
    rows: int, length: int, vocabulary: int, rule: torch.Generator, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Inputs and targets (rows, length): the same sequences, one token apart."""
    following = torch.randperm(vocabulary, generator=rule)
    sequences = torch.randint(vocabulary, (rows, length + 1), generator=generator)
    jumps = torch.rand(rows, length + 1, generator=generator) < JUMP_PROBABILITY
    for position in range(1, length + 1):
        follows = following[sequences[:, position - 1]]
        sequences[:, position] = torch.where(jumps[:, position], sequences[:, position], follows)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
