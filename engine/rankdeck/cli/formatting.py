"""Sizes, kinds of memory, losses and evaluations in words, and bars: what displays and summaries share."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from rankdeck import events
from rankdeck.base.units import format_bytes
from rankdeck.run.imbalance import BALANCED, is_notable

if TYPE_CHECKING:
    from rankdeck.run.run_state import RunState
    from rankdeck.run.summary import ImbalanceSummary, RunSummary

UNKNOWN = "-"
KIND_LABELS = {
    "parameters": "weights",
    "gradients": "gradients",
    "optimizer": "optimizer",
    "buffers": "buffers",
    "activations": "activ.",
    "gathered": "gathered",
    "communication": "comm",
    "inputs": "inputs",
    "temporary": "temp",
    events.UNATTRIBUTED: "unattr.",
}


def kinds_text(by_kind: Mapping[str, int], num_kinds: int = 3) -> str:
    """'gathered 128.0 MiB, weights 40.2 MiB': the largest kinds first."""
    largest = sorted(by_kind.items(), key=lambda item: item[1], reverse=True)[:num_kinds]
    return ", ".join(f"{KIND_LABELS.get(kind, kind)} {format_bytes(size)}" for kind, size in largest if size)


def one_line(text: object, longest: int = 200) -> str:
    """What a script calls something, on one line and without what would move a terminal's cursor."""
    words = "".join(sign if sign.isprintable() else "?" for sign in str(text)[: longest + 1])
    return words if len(words) <= longest else words[: longest - 3] + "..."


def size_text(num_bytes: int | None) -> str:
    return UNKNOWN if num_bytes is None else format_bytes(num_bytes)


def sizes_text(sizes: Iterable[int | None], max_groups: float = math.inf) -> str:
    """'12.9 GiB, 3.7 GiB x3': equal neighbours once; where that leaves more than `max_groups`, all equal
    ones."""
    words = list(map(size_text, sizes))
    counts = [(size, len(list(group))) for size, group in itertools.groupby(words)]
    if len(counts) > max_groups:
        counts = list(Counter(words).items())
    return ", ".join(size if count == 1 else f"{size} x{count}" for size, count in counts) or UNKNOWN


def empty_table() -> Table:
    return Table(box=None, header_style="dim", pad_edge=False)


def bar(share: float, *, style: str, peak: float = 0.0, num_cells: int = 24) -> Text:
    """A bar of `num_cells` cells, filled by `share` (0..1) and dimly up to `peak`."""
    filled, dim = (round(min(1.0, max(0.0, part)) * num_cells) for part in (share, max(share, peak)))
    words = Text("━" * filled, style=f"{style} not bold")
    words.append("━" * (dim - filled), style=f"{style} dim not bold")
    words.append("─" * (num_cells - dim), style="bright_black not bold")
    return words


def loss_text(loss: float | None) -> str:
    """'0.0123'; '?' for a loss that is not known."""
    return "?" if loss is None or loss != loss else f"{loss:.4f}"


def loss_range_text(summary: RunSummary) -> str:
    """'2.3021 to 0.0123'; with ' at step 1980' where that of the last step is not known."""
    first, last = summary.loss.first, summary.loss.last
    at = f" at step {summary.loss_step}" if summary.loss_step not in (None, summary.steps) else ""
    return f"{loss_text(first)} to {loss_text(last)}{at}"


def non_finite_loss_text(summary: RunSummary) -> str:
    """'with a loss that is not finite from step 12 on'; empty where it was a number wherever it was read."""
    step, newest = summary.not_finite, summary.loss_step
    if step is None:
        return ""
    place = f"from step {step} on" if (newest or 0) < step else f"in step {step}"
    return f"with a loss that is not finite {place}"


def evaluation_text(evaluation: events.Evaluation) -> str:
    """'step 100: held-out loss 0.0712, accuracy 97.50 %'."""
    words = f"step {evaluation.step}: held-out loss {loss_text(evaluation.loss)}"
    if evaluation.accuracy is not None:
        words += f", accuracy {evaluation.accuracy:.2%}".replace("%", " %")
    return words


def progress_parts(fold: RunState) -> list[str]:
    """'step 120', 'loss 0.5312 at step 118', '14.3 steps/s', '457.6 samples/s': what is known of a run whose
    end nobody knows."""
    words = [f"step {fold.step or 0}"]
    newest = fold.newest_value("loss")
    if newest is not None:
        step, loss = newest
        words.append(f"loss {loss_text(loss)}" + (f" at step {step}" if step != fold.step else ""))
    for pace, unit in ((fold.recent_steps_per_s(), "steps"), (fold.recent_samples_per_s(), "samples")):
        if pace is not None:
            words.append(f"{pace:.1f} {unit}/s")
    return words


def imbalance_text(imbalance: ImbalanceSummary) -> str:
    """'device 0 +38.7 GiB against the median of the others (3.2×)'; 'balanced' where none stands out."""
    ratio = imbalance.ratio
    if not is_notable(imbalance.excess_bytes, ratio):
        return BALANCED
    excess = format_bytes(imbalance.excess_bytes)
    words = f"device {imbalance.device} +{excess} against the median of the others"
    return words + (f" ({ratio:.1f}×)" if ratio is not None else "")
