"""Cuts text into windows of tokens: the input is `context` tokens, the target the same window shifted by one.

The windows are adjacent: training windows cover the first 95 % of the token stream, and held-out windows the
last 5 %. Both are the same for every seed. At most MAX_HELDOUT_WINDOWS evenly spaced held-out windows are
used, so that an evaluation on a CPU takes seconds and not minutes. All ranks share the tokens as a memory
map. corpus.py builds the tokens; for @stdlib, they cover the first 8 MB of the standard library's files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankdeck.base.errors import DataError
from rankdeck.base.phrases import phrase
from rankdeck.config.catalog import TextArgs
from rankdeck.data.base import DataSpec
from rankdeck.data.corpus import ensure_tokens, token_dtype

DEFAULT_CONTEXT = 128
HELDOUT_DIVISOR = 20
MAX_HELDOUT_WINDOWS = 256


class Text:
    """Text data set: inputs and targets (context,) int64."""

    def __init__(self, args: Mapping[str, Any] | None = None) -> None:
        self.args = TextArgs.model_validate(dict(args or {}))
        self.context = self.args.context or DEFAULT_CONTEXT

    def describe(self) -> DataSpec:
        """Return the DataSpec. Both sample counts are None, because they are unknown until the text is
        read."""
        return DataSpec(
            input_shape=(self.context,),
            input_dtype=torch.int64,
            target_shape=(self.context,),
            target_dtype=torch.int64,
            vocabulary=self.args.vocabulary,
        )

    def prepare(self) -> None:
        """Build the vocabulary and the tokens, unless they are in the cache.

        Raises:
            DataError: the path cannot be read or the cache cannot be written.
        """
        ensure_tokens(self.args.path, self.args.vocabulary)

    def load(self) -> tuple[TokenWindows, TokenWindows]:
        """Return the training windows and the held-out windows.

        Raises:
            DataError: as in `prepare`, or the text is shorter than two windows.
        """
        file = ensure_tokens(self.args.path, self.args.vocabulary)
        dtype = token_dtype(self.args.vocabulary)
        num_tokens = file.stat().st_size // dtype.itemsize
        window = self.context + 1
        # At least one window, also for a short text.
        heldout = max(window, num_tokens // HELDOUT_DIVISOR)
        if num_tokens < heldout + window:
            raise DataError(
                phrase(
                    "data.args.path = {path} has {num_tokens} tokens, not enough for two samples.",
                    path=self.args.path,
                    num_tokens=num_tokens,
                ),
                path="data.args.path",
                advice=phrase(
                    "Use a longer text, or a context of {most} or less.", most=max(1, num_tokens // 2 - 1)
                ),
            )
        split = num_tokens - heldout
        return (
            TokenWindows(file, dtype, 0, split, self.context),
            TokenWindows(file, dtype, split, num_tokens, self.context, max_windows=MAX_HELDOUT_WINDOWS),
        )


class TokenWindows:
    """Adjacent windows over the tokens [start, stop) of a file; if there are more than `max_windows` of them,
    at most `max_windows` evenly spaced windows are used."""

    is_random = False

    def __init__(
        self,
        file: Path,
        dtype: np.dtype[Any],
        start: int,
        stop: int,
        context: int,
        max_windows: int | None = None,
    ) -> None:
        self.file, self.dtype, self.start, self.context = file, dtype, start, context
        # Minus one, because targets are shifted by a token.
        self.num_windows = (stop - start - 1) // context
        self.stride = max(1, -(-self.num_windows // max_windows)) if max_windows else 1
        # Mapped on the first read, in the process that reads.
        self._rows: tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]] | None = None

    def __len__(self) -> int:
        return -(-self.num_windows // self.stride)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        inputs, targets = self.read_batch([index % len(self)])
        return inputs[0], targets[0]

    def read_batch(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return inputs and targets (B, context) int64."""
        inputs, targets = self._rows or self._open()
        rows = np.asarray(indices) * self.stride
        return (
            torch.from_numpy(inputs[rows].astype(np.int64)),
            torch.from_numpy(targets[rows].astype(np.int64)),
        )

    def _open(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Map the file and return two views (num_windows, context), the second shifted by one token."""
        tokens = np.asarray(np.memmap(self.file, dtype=self.dtype, mode="r"))
        length = self.num_windows * self.context
        views = (
            tokens[self.start + shift :][:length].reshape(self.num_windows, self.context) for shift in (0, 1)
        )
        inputs, targets = views
        self._rows = (inputs, targets)
        return self._rows

    def __getstate__(self) -> dict[str, object]:
        """Return the state without the memory map, because pickling the map would copy the whole file."""
        return {**self.__dict__, "_rows": None}
