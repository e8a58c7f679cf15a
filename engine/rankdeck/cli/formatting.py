"""Format sizes, memory kinds, losses, evaluations and bars for displays and summaries."""

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
# Short labels, because a live row shows three of them next to the bar.
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
    """Return text such as 'gathered 128.0 MiB, weights 40.2 MiB', largest kinds first."""
    largest = sorted(by_kind.items(), key=lambda item: item[1], reverse=True)[:num_kinds]
    return ", ".join(f"{KIND_LABELS.get(kind, kind)} {format_bytes(size)}" for kind, size in largest if size)


def one_line(text: object, longest: int = 200) -> str:
    """Format text from a script or another program as one line of at most `longest` printable characters."""
    # Cut before the loop, because a script's text may be megabytes long; the additional character shows that
    # it was cut.
    printable = "".join(sign if sign.isprintable() else "?" for sign in str(text)[: longest + 1])
    return printable if len(printable) <= longest else printable[: longest - 3] + "..."


def size_text(num_bytes: int | None) -> str:
    return UNKNOWN if num_bytes is None else format_bytes(num_bytes)


def sizes_text(sizes: Iterable[int | None], max_groups: float = math.inf) -> str:
    """Return text such as '12.9 GiB, 3.7 GiB x3': adjacent equal sizes are grouped.

    If that gives more than `max_groups` groups, all equal sizes are grouped.
    """
    texts = list(map(size_text, sizes))
    counts = [(size, len(list(group))) for size, group in itertools.groupby(texts)]
    if len(counts) > max_groups:
        counts = list(Counter(texts).items())
    return ", ".join(size if count == 1 else f"{size} x{count}" for size, count in counts) or UNKNOWN


def empty_table() -> Table:
    return Table(box=None, header_style="dim", pad_edge=False)


def bar(share: float, *, style: str, peak: float = 0.0, num_cells: int = 24) -> Text:
    """Return a bar of `num_cells` cells, bright up to `share` and dim up to `peak` (both 0..1)."""
    filled, dim = (round(min(1.0, max(0.0, fraction)) * num_cells) for fraction in (share, max(share, peak)))
    text = Text("━" * filled, style=f"{style} not bold")
    text.append("━" * (dim - filled), style=f"{style} dim not bold")
    text.append("─" * (num_cells - dim), style="bright_black not bold")
    return text


def loss_text(loss: float | None) -> str:
    """Return text such as '0.0123'; '?' for an unknown loss."""
    # NaN is the only value that differs from itself.
    return "?" if loss is None or loss != loss else f"{loss:.4f}"


def loss_range_text(summary: RunSummary) -> str:
    """Return text such as '2.3021 to 0.0123'; with ' at step 1980' if the last step's loss is unknown."""
    first, last = summary.loss.first, summary.loss.last
    at = f" at step {summary.loss_step}" if summary.loss_step not in (None, summary.steps) else ""
    return f"{loss_text(first)} to {loss_text(last)}{at}"


def non_finite_loss_text(summary: RunSummary) -> str:
    """Return text such as 'with a non-finite loss from step 12 on'; empty if all known losses are finite."""
    step, newest = summary.not_finite, summary.loss_step
    if step is None:
        return ""
    where = f"from step {step} on" if (newest or 0) < step else f"in step {step}"
    return f"with a non-finite loss {where}"


def evaluation_text(evaluation: events.Evaluation) -> str:
    """Return text such as 'step 100: held-out loss 0.0712, accuracy 97.50 %'."""
    text = f"step {evaluation.step}: held-out loss {loss_text(evaluation.loss)}"
    if evaluation.accuracy is not None:
        text += f", accuracy {evaluation.accuracy:.2%}".replace("%", " %")
    return text


def progress_parts(state: RunState) -> list[str]:
    """Return texts such as 'step 120', 'loss 0.5312 at step 118', '14.3 steps/s' and '457.6 samples/s'.

    They show the progress of a run whose total number of steps is unknown.
    """
    texts = [f"step {state.step or 0}"]
    newest = state.newest_value("loss")
    if newest is not None:
        step, loss = newest
        texts.append(f"loss {loss_text(loss)}" + (f" at step {step}" if step != state.step else ""))
    for pace, unit in ((state.recent_steps_per_s(), "steps"), (state.recent_samples_per_s(), "samples")):
        if pace is not None:
            texts.append(f"{pace:.1f} {unit}/s")
    return texts


def imbalance_text(imbalance: ImbalanceSummary) -> str:
    """Return text such as 'device 0 is 38.7 GiB above the median of the others (3.2×)', or 'balanced'."""
    ratio = imbalance.ratio
    if not is_notable(imbalance.excess_bytes, ratio):
        return BALANCED
    excess = format_bytes(imbalance.excess_bytes)
    text = f"device {imbalance.device} is {excess} above the median of the others"
    return text + (f" ({ratio:.1f}×)" if ratio is not None else "")
