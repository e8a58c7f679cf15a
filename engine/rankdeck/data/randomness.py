"""A sample's randomness follows from its Draw (seed, epoch, sample), whoever reads it: any rank, any worker,
before or after a resume.

Random augmentation draws from torch's, NumPy's or Python's own generator. These three are seeded before each
sample, and get back the states that they had before the batch: in a rank they belong to the model (dropout).
What a data set draws from elsewhere (a generator that it keeps, the clock) cannot be seeded; it shows when a
sample is read again, and is told. Read base.py before, loader.py next.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import phrase
from rankdeck.data.base import Draw

NUM_READ_AGAIN = 4
_ADVICE = phrase(
    "Draw from torch, numpy.random or random inside __getitem__; or set needs_epoch = True on the data set "
    "and make a generator from the (seed, epoch, sample) that it then gets as index."
)
OUTSIDE_THE_SAMPLE = Problem(
    "data-random",
    phrase(
        "The training data draws from a generator of its own: a sample that was read again under the same "
        "seed was another one. Its randomness depends on the number of devices, on data.workers and on "
        "resumes."
    ),
    path="data.use",
    advice=_ADVICE,
    severity="warning",
)
FOR_A_BATCH = Problem(
    "data-random",
    phrase(
        "read_batch of the training data draws for a batch as a whole: its randomness depends on how devices "
        "and train.accumulate cut the batch."
    ),
    path="data.use",
    advice=_ADVICE,
    severity="warning",
)


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """torch's (on the host), NumPy's and Python's generators are afterwards as they were."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def seed(draw: Draw) -> None:
    """Every global generator of the host begins anew for this sample. GPUs' are none of a sample's."""
    digest = hashlib.blake2b(f"{draw.seed}:{draw.epoch}:{draw.sample}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest) >> 1
    torch.default_generator.manual_seed(number)
    np.random.seed(number % 2**32)
    random.seed(number)


def problem_of_samples(
    read: Callable[[Draw], Any], draws: Sequence[Draw], samples: Sequence[Any]
) -> Problem | None:
    """What is told of samples where `read` does not give the same ones again."""
    pairs = list(zip(draws, samples, strict=True))[:NUM_READ_AGAIN]
    return None if all(_alike(sample, read(draw)) for draw, sample in pairs) else OUTSIDE_THE_SAMPLE


def problem_of_batch(
    read: Callable[[Sequence[Draw]], Any], draws: Sequence[Draw], batch: Any
) -> Problem | None:
    """The same of a data set that reads whole batches, and whether it draws for all samples together."""
    if not _alike(batch, read(draws)):
        return OUTSIDE_THE_SAMPLE
    drawn_next = _draw_next()
    seed(draws[0])
    return None if drawn_next == _draw_next() else FOR_A_BATCH


def _draw_next() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def _alike(one: Any, other: Any) -> bool:
    """Whether two readings hold the same numbers; of what is no number nothing is said."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(_alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_alike, one, other))
    if isinstance(one, Tensor | np.ndarray | np.generic | int | float):
        left, right = torch.as_tensor(one), torch.as_tensor(other)
        return left.shape == right.shape and bool(((left == right) | (left != left)).all())
    return True
