"""Seeds each sample's randomness from its SampleKey (seed, epoch, sample), so that it is the same in any rank
or worker, before or after a resume.

Random augmentation draws from torch's, NumPy's or Python's global generator. These three are seeded before
each sample and restored after the batch, because in a rank the model uses them too (dropout). Randomness from
other sources (a private generator, the clock) cannot be seeded; it is detected by reading a sample again, and
reported. The same check finds a stream disguised as a map-style data set. Such a stream returns its next
sample whatever the index is, so a second read of the same index also returns a different target.

Read base.py first, loader.py next.
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
from rankdeck.data.base import SampleKey

NUM_REREAD_SAMPLES = 4
_ADVICE = phrase(
    "Draw random numbers from torch, numpy.random or random inside __getitem__. Or set "
    "needs_epoch = True on the data set, and seed a generator with the (seed, epoch, sample) "
    "that __getitem__ then receives as its index."
)
PRIVATE_GENERATOR = Problem(
    "data-random",
    phrase(
        "The training data uses its own random generator: reading a sample again with the same "
        "seed returned different values. Its randomness depends on the number of devices, on "
        "data.workers and on whether a run is resumed."
    ),
    path="data.use",
    advice=_ADVICE,
    severity="warning",
)
IGNORES_INDEX = Problem(
    "data-random",
    phrase(
        "The training data ignores the index: reading a sample again with the same seed "
        "returned a different sample with a different target. If it reads a stream, every rank "
        "and every worker (data.workers) reads that stream from its start, so all ranks train "
        "on the same samples."
    ),
    path="data.use",
    advice=phrase(
        "Return the same sample for the same index: read the stream into a list first, or "
        "compute the position in the stream from the index. Draw random numbers from torch, "
        "numpy.random or random inside __getitem__."
    ),
    severity="warning",
)
DRAWS_PER_BATCH = Problem(
    "data-random",
    phrase(
        "read_batch of the training data draws random numbers for the whole batch, so its "
        "randomness depends on how devices and train.accumulate split the batch."
    ),
    path="data.use",
    advice=_ADVICE,
    severity="warning",
)


@contextlib.contextmanager
def preserve_random_states() -> Iterator[None]:
    """Restore the states of torch's CPU generator and of NumPy's and Python's generators on exit."""
    states = torch.default_generator.get_state(), np.random.get_state(), random.getstate()
    try:
        yield
    finally:
        torch.default_generator.set_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


def seed_generators(draw: SampleKey) -> None:
    """Seed the global CPU generators for the sample with the key `draw`; leave GPU generators alone."""
    digest = hashlib.blake2b(f"{draw.seed}:{draw.epoch}:{draw.sample}".encode(), digest_size=8).digest()
    number = int.from_bytes(digest) >> 1
    torch.default_generator.manual_seed(number)
    # NumPy's global generator takes 32 bits.
    np.random.seed(number % 2**32)
    random.seed(number)


def check_samples(
    read: Callable[[SampleKey], Any], draws: Sequence[SampleKey], samples: Sequence[Any]
) -> Problem | None:
    """Read the first few of `samples` again, by their keys in `draws`; return the problem if the two
    reads differ."""
    pairs = list(zip(draws, samples, strict=True))[:NUM_REREAD_SAMPLES]
    problems = [_compare_reads(sample, read(draw)) for draw, sample in pairs]
    # Ignoring the index is the more serious problem of the two.
    return IGNORES_INDEX if IGNORES_INDEX in problems else next(filter(None, problems), None)


def check_batch(
    read: Callable[[Sequence[SampleKey]], Any], draws: Sequence[SampleKey], batch: Any
) -> Problem | None:
    """Read the batch again and return the problem if the two reads differ, or if `read` draws random numbers
    for the batch as a whole."""
    problem = _compare_reads(batch, read(draws))
    if problem is not None:
        return problem
    # If `read` drew nothing, the generators are still where the seed put them.
    drawn_next = _next_draws()
    seed_generators(draws[0])
    return None if drawn_next == _next_draws() else DRAWS_PER_BATCH


def _compare_reads(first: Any, other: Any) -> Problem | None:
    """Return the problem that two reads of a sample or batch reveal, or None.

    If the targets also differ, the data set ignores the index, because augmentation does not change targets.
    """
    if is_equal(first, other):
        return None
    targets = [
        sample.get("labels") if isinstance(sample, Mapping) else sample[1] for sample in (first, other)
    ]
    return PRIVATE_GENERATOR if is_equal(*targets) else IGNORES_INDEX


def _next_draws() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


def is_equal(first: Any, other: Any) -> bool:
    """Check whether two reads contain the same numbers. Anything other than numbers and dense tensors counts
    as equal."""
    if isinstance(first, Mapping):
        return first.keys() == other.keys() and all(is_equal(first[key], other[key]) for key in first)
    if isinstance(first, tuple | list):
        return len(first) == len(other) and all(map(is_equal, first, other))
    if isinstance(first, Tensor | np.ndarray | np.generic | int | float):
        left, right = torch.as_tensor(first), torch.as_tensor(other)
        if left.layout is not torch.strided or left.is_nested:
            return True
        # NaNs count as equal.
        return left.shape == right.shape and bool(((left == right) | (left != left)).all())
    return True
