"""Describes how a loader chooses its samples, and checks splits and the random generators of datasets.

A description is read once from the first training loader's attributes: torch's samplers, and those of
Accelerate and Lightning, which wrap them. A split is read from `Subset` and `SubsetRandomSampler`. No sample
is read. Read loaders.py first.
"""

from __future__ import annotations

import weakref

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from .session import RankSession

PART = "sampling"
_INNER_SAMPLERS = ("batch_sampler", "sampler", "_sampler")
_SHARE_NAMES = (("num_replicas", "rank"), ("num_processes", "process_index"))
"""Names of a sampler's attributes (number of shares, index of its own share): torch's and Accelerate's."""
_MAX_DEPTH = 6
_MAX_INDICES = 1 << 18
_MAX_EVALUATIONS = 8
"""Number of evaluation loaders whose samples are compared with the training loader's."""
_MAX_TRAINED = 3
"""Number of training sets after which evaluations are no longer examined: more sets are probably folds, bags
or clients, which overlap on purpose."""
_MAX_SHARED_SHARE = 0.95
"""Share of training samples among the evaluated ones above which the overlap counts as intentional."""
_SEEDING_NAMES = {
    "seed", "manual_seed", "default_rng", "RandomState", "Random", "Generator", "get_worker_info",
    "initial_seed", "spawn", "SeedSequence", "setstate", "set_state", "set_rng_state", "fork_rng",
}  # fmt: skip
"""Names whose use in a dataset shows that it seeds its generators itself."""


class SamplingChecks:
    """Checks the dataset and the sampler of each new training loader and of the first evaluation loaders."""

    def __init__(self, session: RankSession, on_evaluation: Callable[[Any], None]) -> None:
        """Create the checks; `on_evaluation` is called with each iterator that starts an evaluation."""
        self._session, self._on_evaluation = session, on_evaluation
        self.forget()

    def forget(self) -> None:
        self._trained: list[Any] = []
        """Weak references to the dataset and the sampler of the newest training loader."""
        self._evaluated: Any = None
        """Weak reference to the last iterator that was used for an evaluation."""
        self._num_evaluations = self._num_trained = 0
        self._has_length = False

    def on_training_iterator(self, iterator: Any) -> None:
        """Handle an iterator when a backward pass uses its first batch."""
        is_first = not self._trained
        if is_first or self._trained[0]() is not iterator._dataset:
            self._num_trained += 1
        self._trained = [_reference(iterator._dataset), _reference(innermost_sampler(iterator))]
        if is_first:
            self._session.record_facts(sampler=describe_sampler(iterator))
            self._check_generators(iterator)

    def on_epoch_end(self, iterator: Any) -> None:
        """Record the length of the first complete pass over a training loader."""
        if not self._has_length:
            self._has_length = True
            self._session.record_facts(epoch_batches=int(iterator._num_yielded))

    def on_evaluation_batch(self, iterator: Any) -> None:
        """Handle a batch that a loader returned while gradients were disabled."""
        if self._evaluated is not None and self._evaluated() is iterator:
            return
        self._evaluated = weakref.ref(iterator)
        self._on_evaluation(iterator)
        # Only the newest training set counts: the folds of a cross-validation overlap on purpose.
        is_examined = self._num_evaluations < _MAX_EVALUATIONS and 0 < self._num_trained <= _MAX_TRAINED
        if not is_examined:
            return
        self._num_evaluations += 1
        dataset, sampler = (reference() for reference in self._trained)
        trained = _indices(dataset, sampler)
        evaluated = _indices(iterator._dataset, innermost_sampler(iterator))
        if trained is None or evaluated is None or trained[0] is not evaluated[0]:
            return
        num_shared = len(trained[1] & evaluated[1])
        # A subset of the training samples is evaluated on purpose, to compare both losses.
        if 0 < num_shared <= _MAX_SHARED_SHARE * len(evaluated[1]) and not evaluated[1] >= trained[1]:
            self._session.report_anomaly(
                "evaluation-on-training-samples",
                names=[type(evaluated[0]).__name__],
                shared=num_shared,
                evaluated=len(evaluated[1]),
                trained=len(trained[1]),
            )

    def _check_generators(self, iterator: Any) -> None:
        """Report a map-style dataset's random generator if each worker process gets a copy of it."""
        num_workers, dataset = getattr(iterator, "_num_workers", 0), iterator._dataset
        has_function = getattr(iterator, "_worker_init_fn", None) is not None
        if num_workers < 2 or iterator._dataset_kind != 0 or has_function:
            return
        while type(dataset).__name__ == "Subset":
            dataset = dataset.dataset
        found = _find_generator(dataset, "__getitem__")
        if found is not None:
            name, code = found
            self._session.report_anomaly(
                "generator-copied-to-workers",
                names=[name, type(dataset).__name__],
                line="%s:%d" % (code.co_filename, code.co_firstlineno),
                workers=num_workers,
            )


def describe_sampler(iterator: Any) -> dict[str, object]:
    """Return facts about the sampler of a loader's iterator: its class, and how it divides the samples."""
    samplers = _samplers(iterator)
    if not samplers:
        return {}
    facts: dict[str, object] = {"class": _class_name(samplers[-1])}
    if getattr(iterator, "_dataset_kind", 0) == 1:
        facts["iterable"] = True
    for sampler in samplers:
        for num_name, index_name in _SHARE_NAMES:
            num_shares, index = getattr(sampler, num_name, None), getattr(sampler, index_name, None)
            if isinstance(num_shares, int) and isinstance(index, int) and "num_replicas" not in facts:
                facts.update({"class": _class_name(sampler), "num_replicas": num_shares, "rank": index})
    for name in ("shuffle", "seed"):
        value = getattr(samplers[-1], name, None)
        if isinstance(value, (bool, int)):
            facts[name] = value
    return facts


def innermost_sampler(iterator: Any) -> Any:
    """Return the sampler that chooses single samples; None if there is none."""
    samplers = _samplers(iterator)
    return samplers[-1] if samplers else None


def _samplers(iterator: Any) -> list[Any]:
    """Return the samplers of an iterator, outermost first."""
    samplers: list[Any] = []
    sampler = getattr(iterator, "_index_sampler", None)
    while sampler is not None and len(samplers) < _MAX_DEPTH and all(sampler is not s for s in samplers):
        samplers.append(sampler)
        attributes = getattr(sampler, "__dict__", {})
        sampler = next((attributes[name] for name in _INNER_SAMPLERS if name in attributes), None)
    return samplers


def is_in_order(iterator: Any) -> bool:
    """Check whether the loader yields its dataset's samples in their stored order."""
    if getattr(iterator, "_dataset_kind", 0) == 1:
        return getattr(iterator, "_num_workers", 0) < 2
    sampler = innermost_sampler(iterator)
    return type(sampler).__name__ == "SequentialSampler" or getattr(sampler, "shuffle", None) is False


def is_random(iterator: Any) -> bool:
    """Check whether the loader's sampler is torch's RandomSampler, which gives each pass an order of its
    own."""
    return type(innermost_sampler(iterator)).__name__ == "RandomSampler"


def _indices(dataset: Any, sampler: Any) -> tuple[Any, set[int]] | None:
    """Return (dataset, indices of its samples that a loader can return); None if they are unknown."""
    if dataset is None:
        return None
    indices: Any = None
    if type(sampler).__name__ == "SubsetRandomSampler":
        indices = list(sampler.indices)
    while type(dataset).__name__ == "Subset" and len(dataset.indices) <= _MAX_INDICES:
        own = dataset.indices
        indices = list(own) if indices is None else [own[int(index)] for index in indices]
        dataset = dataset.dataset
    if indices is None or len(indices) > _MAX_INDICES:
        return None
    return dataset, {int(index) for index in indices}


def _reference(value: Any) -> Any:
    try:
        return weakref.ref(value)
    except TypeError:  # A list as a dataset, for example.
        return lambda: None


def _find_generator(owner: Any, method: str, deeper: int = 1) -> tuple[str, Any] | None:
    """Return (name of a random generator that the method uses, the method's code); None if it uses none, or
    seeds its generators itself. Unless `deeper` is 0, objects that the method uses are searched too."""
    kind: Any = type(owner)
    function: Any = getattr(kind, method, None)
    code, attributes = getattr(function, "__code__", None), getattr(owner, "__dict__", {})
    if code is None:
        return None
    # One level of methods of the same class: names of other functions may be anything.
    called = [getattr(getattr(kind, name, None), "__code__", None) for name in code.co_names]
    names = {name for c in (code, *called) if c is not None for name in c.co_names}
    if names & _SEEDING_NAMES:
        return None
    for name in sorted(names):
        if _is_generator(attributes.get(name)):
            return "self." + name, code
        if name not in attributes and _is_generator(function.__globals__.get(name)):
            return name, code
        # A transform may have a generator of its own.
        found = _find_generator(attributes[name], "__call__", 0) if deeper and name in attributes else None
        if found is not None:
            return found
    return None


def _is_generator(value: Any) -> bool:
    kind = type(value)
    name = "%s.%s" % (kind.__module__.split(".")[0], kind.__name__)
    return name in ("numpy.Generator", "numpy.RandomState", "random.Random", "torch.Generator")


def _class_name(value: Any) -> str:
    kind = type(value)
    return "%s:%s" % (kind.__module__, kind.__qualname__)
