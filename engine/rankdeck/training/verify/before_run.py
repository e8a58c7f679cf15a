"""Run the check before a run, and report its result.

Rank 0 writes the result. The run ends if the strategy's results differ from those of one device for a reason
that is not inherent in the strategy. Read check.py first, ../worker.py next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch

from rankdeck import events
from rankdeck.base.errors import ModelError, Problem
from rankdeck.base.phrases import join_sentences, phrase, tr_noop
from rankdeck.config import RunConfig
from rankdeck.diagnose.fixes import Fix
from rankdeck.parallel.tensor.split_plan import ModelAnalysis
from rankdeck.training.parity_notes import batch_norm_note, dropout_note
from rankdeck.training.verify.causes import Cause, Discrepancy
from rankdeck.training.verify.check import CheckResult, EqualityCheck
from rankdeck.training.workload import Workload


def verify(
    workload: Workload,
    *,
    rank: int,
    world_size: int,
    devices: list[torch.device],
    num_devices: int,
    analysis: ModelAnalysis,
    beat: Callable[[str], object],
    write: Callable[[events.Event], object],
) -> list[Problem] | None:
    """Return notes on the strategy's inherent differences from one device; None if nothing was compared.

    All ranks of the run call this together, and rank 0 writes the result. Findings about the model are added
    to `analysis`, which assembly.py uses.

    Raises: ModelError if the strategy's results differ from those of one device for any other reason.
    """
    config = workload.config
    check = EqualityCheck(
        workload,
        rank=rank,
        world_size=world_size,
        devices=devices,
        num_devices=num_devices,
        analysis=analysis,
        is_full=config.train.verify == "full",
        beat=beat,
    )
    result = check.run()
    if rank == 0:
        write(verified_event(result))
    if result.finding is not None:
        raise verification_error(result.finding, config, check.batch_split)
    return None if result.skip_reason is not None else verification_notes(result, config, check.batch_split)


# Turn the check's result into an event, notes, or the error that refuses the run.
#
# Notes are for inherent differences: batch norms, random draws, compressed or stale gradients. Any other
# difference is refused, because a run that silently differs from one device costs weeks; train.verify = "off"
# trains anyway. Read ../worker.py next.

DIFFERS_CODE = "differs-from-one-device"
"""Error code of a run that the check refuses."""
_MAX_NAMES = 3

_MESSAGES: dict[Cause, str] = {
    "samples": tr_noop(
        "The model mixes the samples of a batch: with strategy.use = {strategy}, each forward pass gets"
        " {num} of {batch} samples, so the weights differ from those on one device ({names})."
    ),
    "loss": tr_noop(
        "The loss does not add up over slices of a batch: with strategy.use = {strategy}, it is "
        "computed for {num} of {batch} samples at a time, so the weights differ from those on one "
        "device ({names})."
    ),
    "state": tr_noop(
        "With strategy.use = {strategy}, the state that the forward pass updates differs from "
        "that on one device: {names}."
    ),
    "forward": tr_noop(
        "From the same weights, the strategy {strategy} computes a different loss than one device; "
        "largest differences: {names}."
    ),
    "gradient": tr_noop(
        "From the same weights, the strategy {strategy} computes different gradients than one device: "
        "{names}."
    ),
    "optimizer": tr_noop(
        "From the same gradients, the optimizer {optimizer} computes different weights with the "
        "strategy {strategy} than on one device: {names}."
    ),
    "unknown": tr_noop(
        "The strategy {strategy} computes different results than one device, and there was no time to "
        "find the cause; largest differences: {names}."
    ),
}
_NOT_FINITE = tr_noop("With this strategy, the loss is NaN or infinite, but on one device it is finite.")
_USE_FULL_BATCHES = Fix(
    tr_noop('Set strategy.use = "model" or "tensor", which process whole batches.'),
    changes={"strategy.use": "model"},
)
_USE_FULL_MODEL = Fix(
    tr_noop('Set strategy.use = "ddp", where every rank runs the model as it is.'),
    changes={"strategy.use": "ddp"},
)
_USE_ONE_DEVICE = Fix(tr_noop('Set strategy.use = "single".'), changes={"strategy.use": "single"})
_USE_FULL_CHECK = Fix(tr_noop('Set train.verify = "full" to find out why.'), changes={"train.verify": "full"})
_FIXES: dict[Cause, Fix] = {
    "samples": _USE_FULL_BATCHES,
    "loss": _USE_FULL_BATCHES,
    "state": _USE_FULL_BATCHES,
    "forward": _USE_FULL_MODEL,
    "gradient": _USE_FULL_MODEL,
    "optimizer": _USE_FULL_MODEL,
    "unknown": _USE_FULL_CHECK,
}
_OVERRIDE = tr_noop('To train anyway, set train.verify = "off".')


def verified_event(result: CheckResult) -> events.Verified:
    """Return the event that reports the result; rank 0 writes the event."""
    finding = result.finding
    outcome = "unchecked" if result.skip_reason is not None else "equal"
    if result.skip_reason is None and (finding is not None or result.excluded):
        outcome = "differs" if finding is not None else "noted"
    cause = finding.cause if finding is not None else next(iter(result.excluded), None)
    return events.Verified(
        rank=0,
        outcome=outcome,
        cause=cause,
        names=[] if finding is None else finding.names[:_MAX_NAMES],
        largest=result.max_difference,
        precision=result.precision,
        samples=result.num_samples,
        steps=result.num_steps,
        seconds=result.seconds,
        why=None if result.skip_reason is None else str(result.skip_reason),
        layers=result.max_layers,
    )


def verification_error(finding: Discrepancy, config: RunConfig, cut: tuple[int, int]) -> ModelError:
    """Return the error that ends a run whose results would differ from those of one device.

    `cut` is (number of samples in a microstep, number of these samples in one forward pass).
    """
    message = phrase(
        _MESSAGES[finding.cause],
        strategy=config.strategy.use,
        optimizer=config.train.optimizer.use,
        batch=cut[0],
        num=cut[1],
        names=_list_tensors(finding),
    )
    is_finite = all(
        difference.kind != "loss" or math.isfinite(difference.max_difference)
        for difference in finding.differences
    )
    text = join_sentences((message, None if is_finite else phrase(_NOT_FINITE)))
    fix = _FIXES[finding.cause]
    # ddp already runs the full model on every rank.
    if fix == _USE_FULL_MODEL and config.strategy.use == "ddp":
        fix = _USE_ONE_DEVICE
    advice = join_sentences((phrase(fix.text), phrase(_OVERRIDE)))
    return ModelError(text, code=DIFFERS_CODE, path="strategy.use", advice=advice, changes=fix.changes)


def _list_tensors(finding: Discrepancy) -> str:
    """List the tensors that differ most, each with its difference relative to how far the tensor moved."""
    relative: dict[str, float] = {}
    for difference in finding.differences:
        if math.isfinite(difference.relative):
            relative[difference.name] = max(relative.get(difference.name, 0.0), difference.relative)
    items = [
        f"{name} ({_format_share(relative[name])} of its change)" if name in relative else name
        for name in finding.names[:_MAX_NAMES]
    ]
    more = len(finding.names) - len(items)
    return ", ".join(items) + (f" and {more} more" if more > 0 else "")


def _format_share(relative: float) -> str:
    return f"{relative:.1%}" if relative >= 5e-4 else f"{relative:.0e}"


def verification_notes(result: CheckResult, config: RunConfig, cut: tuple[int, int]) -> list[Problem]:
    """Return notes on the inherent differences from one device; `cut` is as in `verification_error`."""
    return list(_iter_notes(result, config, cut))


def _iter_notes(result: CheckResult, config: RunConfig, cut: tuple[int, int]) -> Iterator[Problem]:
    if "batch-norm" in result.excluded:
        yield batch_norm_note(config, cut[1], cut[0])
    if result.uses_random:
        yield dropout_note()
    if "compress" in result.excluded:
        yield Problem(
            "compression-differs",
            phrase(
                "strategy.compress = {compress} rounds gradients for communication, so the "
                "final weights differ from those on one device.",
                compress=config.strategy.options.get("compress"),
            ),
            path="strategy.compress",
            advice=phrase('Set strategy.compress = "none" to compare numerically.'),
            severity="info",
        )
