"""Reads batches from a data set in the sampler's order, in this process or in worker processes.

A reader turns the sampler's lists of sample keys into batches: with the data set's own read_batch if it has
one, otherwise by collating samples, each seeded by its key. Worker processes get these lists as the indices
of torch's DataLoader (batch_size=None); with neither workers nor pinning, no DataLoader is used. A batch is
always a pair (inputs, targets). A worker's error is sent to this process as data and raised here with its own
message; torch would rebuild it as "Caught ... in DataLoader worker process 0". Read base.py, samplers.py and
randomness.py first.
"""

from __future__ import annotations

import signal
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, default_collate, get_worker_info

from rankdeck.base.errors import DataError, Problem, RankdeckError, TrainingError
from rankdeck.base.heartbeat import die_with_parent
from rankdeck.base.phrases import phrase
from rankdeck.data import randomness
from rankdeck.data.base import SampleKey, SampleSet, SupportsReadBatch, TensorSamples, is_random, needs_epoch
from rankdeck.data.samplers import HeldoutBatchSampler, TrainBatchSampler
from rankdeck.diagnose.exceptions import describe_exception
from rankdeck.torch_compat.processes import shut_down_workers

ReportProblem = Callable[[Problem], object]


class Loader:
    """An iterable of batches in the sampler's order; each new iteration starts over. Worker processes
    live until `close`.

    `report` is called at most once, with a problem found in the data's randomness.
    """

    def __init__(self, batches: Iterable[Any], num_batches: int, report: ReportProblem | None = None) -> None:
        self._batches: Iterable[Any] | None = batches
        self._num_batches = num_batches
        self._report = report

    def __len__(self) -> int:
        return self._num_batches

    def __iter__(self) -> Iterator[Any]:
        assert self._batches is not None, "the loader is closed"
        for batch in self._batches:
            if isinstance(batch, _WorkerFailure):
                raise batch.to_error()
            if isinstance(batch, _ReportedBatch):
                report, self._report = self._report, None
                if report is not None:
                    report(batch.problem)
                batch = batch.batch
            yield batch

    def close(self) -> None:
        """End the worker processes; safe to call twice."""
        batches, self._batches = self._batches, None
        shut_down_workers(batches)


def build_loader(
    dataset: SampleSet,
    batches: TrainBatchSampler | HeldoutBatchSampler,
    *,
    workers: int = 0,
    pin_memory: bool = False,
    report: ReportProblem | None = None,
) -> Loader:
    """Build a loader over `batches` with `workers` processes (0: read in this process).

    Batches are pinned only if there is a CUDA device. Building or iterating a loader preserves the global
    random states. If `report` is not None, some samples are read twice, to find randomness that their seed
    does not control.
    """
    reader = _Reader(dataset, checks_repeats=report is not None)
    pin_memory = pin_memory and torch.cuda.is_available()
    if not workers and not pin_memory:
        return Loader(_LocalBatches(reader, batches), len(batches), report)
    loader: DataLoader[Any] = DataLoader(
        reader,  # type: ignore[arg-type]  # map-style by lists of indices
        batch_size=None,
        sampler=batches,
        collate_fn=_identity,
        num_workers=workers,
        pin_memory=pin_memory,
        persistent_workers=workers > 0,
        worker_init_fn=_init_worker if workers else None,
        generator=torch.Generator(),  # seeds the workers, whose seeds no sample uses
    )
    return Loader(loader, len(batches), report)


def first_batch(dataset: SampleSet, num_samples: int) -> Any:
    """Return the first `num_samples` samples as one batch, read in this process; global random states are
    preserved."""
    return read_samples(dataset, range(num_samples))


def read_samples(dataset: SampleSet, samples: Sequence[int]) -> Any:
    """Return the samples with these indices as one batch, read as in `first_batch`."""
    return read_sample_keys(dataset, [SampleKey(0, 0, index) for index in samples])


def read_sample_keys(dataset: SampleSet, draws: Sequence[SampleKey]) -> Any:
    """Return the samples with these keys as one batch, read as in `first_batch`."""
    return _Reader(dataset).read(draws)


class _LocalBatches:
    """Batches read in this process on demand. A TensorSamples data set is indexed with index tensors instead
    of lists of sample keys."""

    def __init__(self, reader: _Reader, batches: TrainBatchSampler | HeldoutBatchSampler) -> None:
        self._reader = reader
        self._batches = batches

    def __iter__(self) -> Iterator[Any]:
        batches = self._batches
        if isinstance(batches, TrainBatchSampler) and isinstance(self._reader.dataset, TensorSamples):
            return map(self._reader.dataset.read_batch, batches.index_tensors())
        return map(self._reader.read, batches)


class _Reader:
    """A data set that is indexed by lists of sample keys and returns batches.

    If `checks_repeats` is True, it reads some samples of its first batch twice. It does so in the reading
    process, so files that the data set opens on its first read belong to that process.
    """

    def __init__(self, dataset: SampleSet, *, checks_repeats: bool = False) -> None:
        self.dataset = dataset
        self._read_batch = dataset.read_batch if isinstance(dataset, SupportsReadBatch) else None
        self._by_sample_key = needs_epoch(dataset)
        self._is_random = is_random(dataset)
        self._checks_repeats = checks_repeats and self._is_random

    def __getitem__(self, draws: Sequence[SampleKey]) -> Any:
        if get_worker_info() is None:
            return self.read(draws)
        try:
            return self.read(draws)
        except RankdeckError as error:
            return _WorkerFailure(error)
        except Exception as error:
            traceback.print_exc()  # to the rank's log: a traceback cannot be sent
            return _WorkerFailure(_worker_error(error))

    def read(self, draws: Sequence[SampleKey]) -> Any:
        """Return (inputs, targets), or a _ReportedBatch with that pair. If samples are dicts, the inputs are
        the batch's dict, and the targets are its `labels`, or the same dict if it has no labels.

        Raises:
            DataError: samples are neither pairs nor dicts, or cannot be stacked.
        """
        if not self._is_random:
            return self._read_and_check(draws)[0]
        with randomness.preserve_random_states():
            batch, problem = self._read_and_check(draws)
        # Only the first batch is checked.
        self._checks_repeats = False
        return batch if problem is None else _ReportedBatch(batch, problem)

    def _read_and_check(self, draws: Sequence[SampleKey]) -> tuple[Any, Problem | None]:
        if self._read_batch is not None:
            batch = self._read_whole_batch(draws)
            pair = _to_pair(batch)
            problem = (
                randomness.check_batch(self._read_whole_batch, draws, batch) if self._checks_repeats else None
            )
            return pair, problem
        samples = [self._sample(draw) for draw in draws]
        for sample in samples:
            _to_pair(sample)
        # Samples are read again in the process that reads: a data set that opens files at its first read must
        # not do so in a rank that forks workers later.
        problem = randomness.check_samples(self._sample, draws, samples) if self._checks_repeats else None
        try:
            return _to_pair(default_collate(samples)), problem
        except (TypeError, RuntimeError, KeyError) as error:
            raise DataError(
                phrase("The samples of one batch cannot be stacked: {error}", error=error),
                path="data.use",
                advice=phrase(
                    "Return tensors, arrays or numbers, with the same shapes in every sample. "
                    "Or give the data set a method read_batch(indices) that returns a whole "
                    "batch, as a DataLoader's collate_fn does."
                ),
            ) from None

    def _sample(self, draw: SampleKey) -> Any:
        if self._is_random:
            randomness.seed_generators(draw)
        return self.dataset[draw if self._by_sample_key else draw.sample]

    def _read_whole_batch(self, draws: Sequence[SampleKey]) -> Any:
        assert self._read_batch is not None
        if self._is_random:
            # Seeded by the batch's first sample, so the result depends on how ranks cut the batch;
            # check_batch reports data sets that draw here.
            randomness.seed_generators(draws[0])
        return self._read_batch(draws if self._by_sample_key else [draw.sample for draw in draws])


def _to_pair(sample: Any) -> tuple[Any, Any]:
    if isinstance(sample, Mapping):
        named = sample if isinstance(sample, dict) else dict(sample)
        return named, named.get("labels", named)
    if isinstance(sample, tuple | list) and len(sample) == 2:
        return sample[0], sample[1]
    kind = type(sample).__name__
    if isinstance(sample, tuple | list):
        message = phrase(
            "A sample is a {kind} of length {length}, neither (inputs, targets) nor a dict.",
            kind=kind,
            length=len(sample),
        )
    else:
        message = phrase("A sample is a {kind}, neither (inputs, targets) nor a dict.", kind=kind)
    raise DataError(
        message,
        path="data.use",
        advice=phrase(
            "Return (inputs, targets), or a dict of the model's arguments that includes the labels."
        ),
    )


def _worker_error(error: Exception) -> TrainingError:
    """Return the user's error as the rank would report it if the rank itself had read the sample."""
    problem = describe_exception(error, rank=0).problem
    advice = phrase(
        "Fix the error in the data set, then start again. The full traceback is in the rank's log."
    )
    return TrainingError(problem.message, problems=[problem.replace_fields(rank=None, advice=advice)])


class _ReportedBatch(NamedTuple):
    """A batch, and the problem that was found in its data."""

    batch: Any
    problem: Problem


class _WorkerFailure:
    """An error in a form that a worker process can send to its rank."""

    def __init__(self, error: RankdeckError) -> None:
        self.error_class: type[RankdeckError] = type(error)
        self.message: str = error.message
        self.problems: list[Problem] = error.problems

    def to_error(self) -> RankdeckError:
        first = self.problems[0]
        return self.error_class(
            self.message,
            code=first.code,
            advice=first.advice,
            path=first.path,
            line=first.line,
            problems=self.problems,
        )


def _init_worker(_worker: int) -> None:
    # torch's workers check only every 5 s whether their rank is alive.
    die_with_parent()
    # A stop signals the rank's whole session. The rank still needs its workers to finish the step and save,
    # and ends them itself.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _identity(batch: Any) -> Any:
    return batch
