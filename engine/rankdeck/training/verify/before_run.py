"""The check as a run takes it: rank 0 writes the result, and what differs from one device for no reason in
the strategy's nature ends the run. Read check.py before, ../worker.py next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from rankdeck import events
from rankdeck.base.errors import ModelError, Problem
from rankdeck.base.phrases import marked, phrase, sentences
from rankdeck.config import RunConfig
from rankdeck.diagnose.fixes import Fix
from rankdeck.parallel.tensor.split_plan import KnownModel
from rankdeck.training.sameness import batch_norms_differ, draws_differ
from rankdeck.training.verify.causes import Cause, Discrepancy
from rankdeck.training.verify.check import EqualityCheck, Result
from rankdeck.training.workload import Workload


def verify(
    workload: Workload,
    *,
    rank: int,
    world_size: int,
    devices: list[torch.device],
    num_devices: int,
    known: KnownModel,
    beat: Callable[[str], object],
    write: Callable[[events.Event], object],
) -> list[Problem] | None:
    """What differs from one device by nature; None where nothing could be compared. All ranks of the run call
    this together, and rank 0 writes the result. `known` gets what was found out about the model,
    for assembly.py.

    Raises: ModelError where the strategy computes something else than one device.
    """
    config = workload.config
    check = EqualityCheck(
        workload,
        rank=rank,
        world_size=world_size,
        devices=devices,
        num_devices=num_devices,
        known=known,
        full=config.train.verify == "full",
        beat=beat,
    )
    result = check.run()
    if rank == 0:
        write(event_of(result))
    if result.finding is not None:
        raise refusal(result.finding, config, check.cut)
    return None if result.unchecked is not None else notes_of(result, config, check.cut)


# What becomes of the check's result: an event for readers of the run, notes, or a refusal.
#
# Notes are for what differs by nature: batch norms, random draws, gradients that are compressed or stale.
# All else is refused, because a run that silently computes something else than one device costs weeks;
# train.verify = "off" trains all the same. Read ../worker.py next.

REFUSED = "differs-from-one-device"
"""The code of a run that the check refuses."""
_NAMES_SHOWN = 3

_MESSAGES: dict[Cause, str] = {
    "samples": marked(
        "The model mixes the samples of a batch: strategy.use = {strategy} gives each forward {num} of "
        "{batch} samples, and its weights differ from one device's ({names})."
    ),
    "loss": marked(
        "The loss does not add up over slices of a batch: strategy.use = {strategy} computes it for {num} of "
        "{batch} samples at a time, and its weights differ from one device's ({names})."
    ),
    "state": marked(
        "State that a forward changes differs from one device's under strategy.use = {strategy}: {names}."
    ),
    "forward": marked(
        "strategy.use = {strategy} computes another loss than one device from the same weights; what differs "
        "most: {names}."
    ),
    "gradient": marked(
        "strategy.use = {strategy} computes other gradients than one device from the same weights: {names}."
    ),
    "optimizer": marked(
        "train.optimizer.use = {optimizer} makes other weights under strategy.use = {strategy} than on one "
        "device, of the same gradients: {names}."
    ),
    "unknown": marked(
        "strategy.use = {strategy} computes something else than one device, and there was no time to find "
        "out why; what differs most: {names}."
    ),
}
_NOT_FINITE = marked("The loss is NaN or infinite there, and finite on one device.")
_WHOLE_BATCHES = Fix(
    marked('Use strategy.use = "model" or "tensor", which take whole batches.'),
    changes={"strategy.use": "model"},
)
_WHOLE_MODEL = Fix(
    marked('Use strategy.use = "ddp", where every rank runs the model as it is.'),
    changes={"strategy.use": "ddp"},
)
_ONE_DEVICE = Fix(marked('Use strategy.use = "single".'), changes={"strategy.use": "single"})
_FIND_OUT = Fix(marked('Set train.verify = "full" to find out why.'), changes={"train.verify": "full"})
_FIXES: dict[Cause, Fix] = {
    "samples": _WHOLE_BATCHES,
    "loss": _WHOLE_BATCHES,
    "state": _WHOLE_BATCHES,
    "forward": _WHOLE_MODEL,
    "gradient": _WHOLE_MODEL,
    "optimizer": _WHOLE_MODEL,
    "unknown": _FIND_OUT,
}
_OVERRIDE = marked('train.verify = "off" trains all the same.')


def event_of(result: Result) -> events.Verified:
    """The result as rank 0 writes it."""
    finding = result.finding
    outcome = "unchecked" if result.unchecked is not None else "equal"
    if result.unchecked is None and (finding is not None or result.left_out):
        outcome = "differs" if finding is not None else "noted"
    cause = finding.cause if finding is not None else next(iter(result.left_out), None)
    return events.Verified(
        rank=0,
        outcome=outcome,
        cause=cause,
        names=[] if finding is None else finding.names[:_NAMES_SHOWN],
        largest=result.largest,
        precision=result.precision,
        samples=result.num_samples,
        steps=result.num_steps,
        seconds=result.seconds,
        why=None if result.unchecked is None else str(result.unchecked),
        layers=result.most_layers,
    )


def refusal(finding: Discrepancy, config: RunConfig, cut: tuple[int, int]) -> ModelError:
    """The error that ends a run which would compute something else than one device. `cut`: samples of a part
    of its batch, and those that one forward sees."""
    message = phrase(
        _MESSAGES[finding.cause],
        strategy=config.strategy.use,
        optimizer=config.train.optimizer.use,
        batch=cut[0],
        num=cut[1],
        names=_listed(finding),
    )
    is_finite = all(one.kind != "loss" or math.isfinite(one.largest) for one in finding.differences)
    told = sentences((message, None if is_finite else phrase(_NOT_FINITE)))
    fix = _FIXES[finding.cause]
    if fix == _WHOLE_MODEL and config.strategy.use == "ddp":
        fix = _ONE_DEVICE
    advice = sentences((phrase(fix.text), phrase(_OVERRIDE)))
    return ModelError(told, code=REFUSED, path="strategy.use", advice=advice, cure=fix.changes)


def _listed(finding: Discrepancy) -> str:
    """The tensors that differ most, with how much of their change that is."""
    relative: dict[str, float] = {}
    for difference in finding.differences:
        if math.isfinite(difference.relative):
            relative[difference.name] = max(relative.get(difference.name, 0.0), difference.relative)
    shown = [
        f"{name} ({_share(relative[name])} of its change)" if name in relative else name
        for name in finding.names[:_NAMES_SHOWN]
    ]
    more = len(finding.names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more > 0 else "")


def _share(relative: float) -> str:
    return f"{relative:.1%}" if relative >= 5e-4 else f"{relative:.0e}"


def notes_of(result: Result, config: RunConfig, cut: tuple[int, int]) -> list[Problem]:
    """What differs from one device by nature; `cut` as above."""
    return list(_notes(result, config, cut))


def _notes(result: Result, config: RunConfig, cut: tuple[int, int]) -> Iterator[Problem]:
    if "batch-norm" in result.left_out:
        yield batch_norms_differ(config, cut[1], cut[0])
    if result.has_drawn:
        yield draws_differ()
    if "compress" in result.left_out:
        yield Problem(
            "compression-differs",
            phrase(
                "strategy.compress = {compress} rounds gradients on their way: the run ends with other "
                "weights than one device.",
                compress=config.strategy.options.get("compress"),
            ),
            path="strategy.compress",
            advice=phrase('Set strategy.compress = "none" to compare number by number.'),
            severity="info",
        )
