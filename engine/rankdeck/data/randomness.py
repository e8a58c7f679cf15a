"""A sample's randomness follows from its Draw (seed, epoch, sample), whoever reads it: any rank, any worker,
before or after a resume.

Random augmentation draws from torch's, NumPy's or Python's own generator. These three are seeded before each
sample, and get back the states that they had before the batch: in a rank they belong to the model (dropout).
What a data set draws from elsewhere (a generator that it keeps, the clock) cannot be seeded; it shows when a
sample is read again, and is told. So is a stream behind a shell of __len__ and __getitem__, which gives its
next sample whatever the index is: read again, a sample has another target as well.

Read base.py before, loader.py next.
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
NOT_BY_INDEX = Problem(
    "data-random",
    phrase(
        "The training data does not go by the index: a sample that was read again under the same seed was "
        "another one, with another target. Where it reads on in a stream, every rank and every worker of "
        "data.workers reads that stream from its start, and all train on the same samples."
    ),
    path="data.use",
    advice=phrase(
        "Return the same sample for the same index: read the stream into a list first, or compute where in "
        "it the index is. Draw from torch, numpy.random or random inside __getitem__."
    ),
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
    found = [_problem_of(sample, read(draw)) for draw, sample in pairs]
    return NOT_BY_INDEX if NOT_BY_INDEX in found else next(filter(None, found), None)


def problem_of_batch(
    read: Callable[[Sequence[Draw]], Any], draws: Sequence[Draw], batch: Any
) -> Problem | None:
    """The same of a data set that reads whole batches, and whether it draws for all samples together."""
    problem = _problem_of(batch, read(draws))
    if problem is not None:
        return problem
    drawn_next = _draw_next()
    seed(draws[0])
    return None if drawn_next == _draw_next() else FOR_A_BATCH


def _problem_of(one: Any, other: Any) -> Problem | None:
    """What is told of two readings of a sample, or of a batch: augmentation leaves the target as it is."""
    if alike(one, other):
        return None
    targets = [sample.get("labels") if isinstance(sample, Mapping) else sample[1] for sample in (one, other)]
    return OUTSIDE_THE_SAMPLE if alike(*targets) else NOT_BY_INDEX


def _draw_next() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def alike(one: Any, other: Any) -> bool:
    """Whether two readings hold the same numbers; of what is neither a number nor a dense tensor nothing is
    said."""
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(alike, one, other))
    if isinstance(one, Tensor | np.ndarray | np.generic | int | float):
        left, right = torch.as_tensor(one), torch.as_tensor(other)
        if left.layout is not torch.strided or left.is_nested:
            return True
        return left.shape == right.shape and bool(((left == right) | (left != left)).all())
    return True
