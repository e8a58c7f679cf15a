"""Generates learnable samples from a seed, in the form that a model takes as input.

There are two kinds of samples, depending on the model's input:
    numbers   one of `classes` patterns plus noise; the target is the pattern's class
    tokens    sequences in which a fixed table maps each token to the next, with occasional random jumps;
              the target is the next token

At most 64 MiB of distinct samples are generated; a larger data set repeats these samples. `masked` is the
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
# Fixed, so that the data does not depend on the run's seed.
DATA_SEED = 20240229


@dataclass(frozen=True)
class InputSpec:
    """A model's input for one sample. With a vocabulary, inputs are tokens (length,); otherwise numbers of
    any shape."""

    input_shape: tuple[int, ...]
    input_dtype: torch.dtype = torch.float32
    classes: int | None = None
    vocabulary: int | None = None


def input_spec(model: str, model_args: Mapping[str, Any]) -> InputSpec:
    """Return the input that a catalogue model expects; arguments that `model_args` lacks have their defaults.

    Raises:
        DataError: the model is not in the catalogue, so its inputs are unknown.
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
            'data.use = "synthetic" supports only the catalogue\'s models, and model.use = '
            '"{model}" is not in the catalogue.',
            model=model,
        ),
        path="data.use",
        advice=phrase('Use your own data set for the model: data.use = "path/to/file.py:factory".'),
    )


class Synthetic:
    """Synthetic data set: inputs as `spec` describes; targets int64, () for classes or (length,) for
    tokens."""

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
        """Do nothing: samples are generated in memory."""

    def load(self) -> tuple[TensorSamples, TensorSamples]:
        return self._samples(self.args.samples, stream=1), self._samples(self.num_heldout, stream=2)

    def _samples(self, num_samples: int, stream: int) -> TensorSamples:
        # A separate generator for the rule, so that training and held-out samples follow the same one.
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
    """Return inputs (rows, *shape) and targets (rows,). A pattern repeats after PATTERN_NUMBERS numbers,
    which limits the patterns' memory.

    `rule` draws the patterns, `generator` the classes and the noise of the samples."""
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
    """Return inputs and targets (rows, length): the targets are the inputs' sequences, shifted by one
    token.

    `rule` draws the table that maps each token to the next; `generator` the first tokens and the jumps."""
    following = torch.randperm(vocabulary, generator=rule)
    sequences = torch.randint(vocabulary, (rows, length + 1), generator=generator)
    jumps = torch.rand(rows, length + 1, generator=generator) < JUMP_PROBABILITY
    for position in range(1, length + 1):
        follows = following[sequences[:, position - 1]]
        # A jump keeps the random token.
        sequences[:, position] = torch.where(jumps[:, position], sequences[:, position], follows)
    return sequences[:, :-1].contiguous(), sequences[:, 1:].contiguous()
