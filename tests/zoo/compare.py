"""What came of a run beside what had to: equal, refused, noted, silently different, or failed.

    equal        all weights, buffers and losses are the oracle's, up to rounding
    refused      the engine said in a sentence of its own why it does not run this
    noted        something else came out, and a note or the strategy's own nature says so
    different    something else came out, and nothing was said
    failed       an error that is no sentence of the engine's, or no end at all

Nothing here imports the engine. Read runner.py next.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.helpers.checkout import CHECKOUT
from tests.zoo.oracle import OracleResult
from tests.zoo.strategies import Setting

TOLERANCE = 1e-9
STALE = "Weights are stale by the strategy's own nature."
OUTCOMES = ("equal", "refused", "noted", "different", "failed")
IRRELEVANT_NOTES = frozenset({"data-random", "batch-norm-tiny"})
"""Codes of notes about something else than the weights that a run ends with."""


@dataclass(frozen=True)
class Difference:
    """The largest difference, relative to what training changed, and where it is."""

    size: float
    where: str


@dataclass
class Outcome:
    """What is kept of a run. `reason` is a sentence and `template` what it has in common with others of its
    kind; each of `notes` is a code, a template and a sentence."""

    kind: str
    difference: float | None = None
    where: str = ""
    reason: str = ""
    template: str = ""
    notes: list[list[str]] = field(default_factory=list)
    detail: str = ""


def judge(
    setting: Setting,
    expected: OracleResult,
    weights: Mapping[str, Tensor] | None,
    ranks: list[dict[str, Any]],
) -> Outcome:
    """`ranks` is what each rank left, in the order of the ranks; {} for one that left nothing."""
    notes = _collect_notes(ranks)
    errors = [rank for rank in ranks if "error" in rank]
    if errors or weights is None:
        return _describe_failure(errors, notes, ranks)
    found = find_difference(expected, weights, _sum_losses(ranks))
    outcome = Outcome("equal", found.size, found.where, notes=notes)
    if not found.size <= TOLERANCE:  # also where it is no number
        why = [(template, said) for code, template, said in notes if code not in IRRELEVANT_NOTES]
        if setting.is_stale:
            why.insert(0, (STALE, STALE))
        outcome.kind = "noted" if why else "different"
        outcome.template, outcome.reason = why[0] if why else ("", "")
    return outcome


def _describe_failure(
    errors: list[dict[str, Any]], notes: list[list[str]], ranks: list[dict[str, Any]]
) -> Outcome:
    raw = [error for error in errors if not error["is_refusal"]]
    if raw:
        first = raw[0]
        detail = f"at {first['at']}\n{first['traceback']}"
        named = f"[{first['named']}] " if "named" in first else ""
        return Outcome("failed", reason=named + _join_lines(first["error"]), notes=notes, detail=detail)
    if not errors:
        silent = [str(number) for number, rank in enumerate(ranks) if not rank]
        return Outcome(
            "failed", reason=f"no answer from ranks {', '.join(silent) or 'that died'}", notes=notes
        )
    first = errors[0]
    detail = "\n".join(filter(None, (first.get("advice"), first.get("cause"))))
    reason, template = _join_lines(first["error"]), _join_lines(first["template"])
    return Outcome("refused", reason=reason, template=template, notes=notes, detail=detail)


def find_difference(expected: OracleResult, weights: Mapping[str, Tensor], losses: list[float]) -> Difference:
    """Of weights relative to the largest change of any, of buffers and losses to their own size."""
    if expected.final.keys() - weights.keys():
        missing = sorted(expected.final.keys() - weights.keys())
        return Difference(float("inf"), f"missing: {', '.join(missing[:3])}")
    change = max(
        _max_difference(expected.final[name], expected.initial[name]) for name in expected.parameters
    )
    found = [Difference(_max_loss_difference(expected.losses, losses), "loss")]
    for name, tensor in expected.final.items():
        if weights[name].shape != tensor.shape:
            return Difference(float("inf"), f"shape of {name}")
        own = (
            change if name in expected.parameters else max(_size(tensor), _size(expected.initial[name]), 1e-3)
        )
        found.append(Difference(_max_difference(weights[name], tensor) / max(own, 1e-12), name))
    return max(found, key=lambda one: (one.size != one.size, one.size))


def _max_difference(left: Tensor, right: Tensor) -> float:
    if not left.numel():
        return 0.0
    if left.dtype != right.dtype and left.is_complex() != right.is_complex():
        return float("inf")
    if not (left.is_floating_point() or left.is_complex()):
        return float((left.long() - right.long()).abs().max())
    return float((left.to(right.dtype) - right).abs().max())


def _size(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() and tensor.dtype != torch.bool else 1.0


def _max_loss_difference(expected: list[float], losses: list[float]) -> float:
    if len(expected) != len(losses):
        return float("inf")
    size = max(1e-3, *map(abs, expected))
    return max(abs(left - right) for left, right in zip(expected, losses, strict=True)) / size


def _sum_losses(ranks: list[dict[str, Any]]) -> list[float]:
    """Of each step, over all ranks that report."""
    telling = [rank for rank in ranks if rank.get("sums")]
    sums = [sum(step) for step in zip(*(rank["sums"] for rank in telling), strict=False)]
    counts = [sum(step) for step in zip(*(rank["counts"] for rank in telling), strict=False)]
    return [total / (count or 1.0) for total, count in zip(sums, counts, strict=False)]


def _collect_notes(ranks: list[dict[str, Any]]) -> list[list[str]]:
    found = {tuple(note): None for rank in ranks for note in rank.get("notes", ())}
    return [list(note) for note in found]


def _join_lines(text: str) -> str:
    """Without the folder of this clone."""
    return " ".join(text.replace(f"{CHECKOUT}/", "").split())[:600]
