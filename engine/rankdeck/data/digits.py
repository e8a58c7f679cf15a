"""Provides scikit-learn's 1797 handwritten digits: 8 x 8 grey pixels from 0 to 1.

Every fifth sample of each class is held out, so the split is balanced and the same for every seed. Source:
sklearn.datasets.load_digits (part of the UCI set "Optical Recognition of Handwritten Digits").
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankdeck.base.errors import DataError
from rankdeck.base.phrases import phrase
from rankdeck.data.base import DataSpec, TensorSamples

NUM_TRAIN = 1442
NUM_HELDOUT = 355
HELDOUT_EVERY = 5
MAX_PIXEL = 16.0


class Digits:
    """The digits data set: inputs (1, 8, 8) float32, targets () int64 from 0 to 9."""

    def __init__(self, args: Mapping[str, Any] | None = None) -> None:
        self.args = dict(args or {})

    def describe(self) -> DataSpec:
        return DataSpec(
            input_shape=(1, 8, 8),
            input_dtype=torch.float32,
            target_shape=(),
            target_dtype=torch.int64,
            classes=10,
            train_samples=NUM_TRAIN,
            heldout_samples=NUM_HELDOUT,
        )

    def prepare(self) -> None:
        """Do nothing: the samples come with scikit-learn."""

    def load(self) -> tuple[TensorSamples, TensorSamples]:
        table = _read_table()
        pixels = torch.from_numpy(table[:, :-1].reshape(-1, 1, 8, 8) / MAX_PIXEL).float()
        classes = torch.from_numpy(table[:, -1].astype(np.int64))
        heldout = torch.zeros(len(classes), dtype=torch.bool)
        for digit in range(10):
            heldout[(classes == digit).nonzero().flatten()[HELDOUT_EVERY - 1 :: HELDOUT_EVERY]] = True
        return (
            TensorSamples(pixels[~heldout], classes[~heldout]),
            TensorSamples(pixels[heldout], classes[heldout]),
        )


def _read_table() -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the samples as rows (1797, 65): 64 pixels and the digit.

    The file is read directly, because importing scikit-learn would cost every rank a second.

    Raises:
        DataError: scikit-learn is not installed.
    """
    spec = importlib.util.find_spec("sklearn")
    if spec is None or spec.origin is None:
        raise DataError(
            phrase('data.use = "digits" needs scikit-learn, which is not installed.'),
            path="data.use",
            advice=phrase("pip install scikit-learn"),
        )
    file = Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz"
    if file.is_file():
        return np.loadtxt(file, delimiter=",")
    # Fallback in case a release of scikit-learn moves the file.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return np.column_stack([bunch.data, bunch.target])
