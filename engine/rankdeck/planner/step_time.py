"""How long a step may take, as a range: what devices compute, what they wait for, what they send.

    single, model       the sum of what each device computes: one after the other
    dp                  the slowest device, and what device 0 moves alone
    ddp, fsdp, tensor   the slowest rank; sends are hidden under it at best, and come on top at worst
    pipeline            the slowest stage, longer by its bubble

Good for a ranking, not for a promise: `calibrated` says that a measured step of the same model on the same
device has set the scale. Read work.py before.
"""

from __future__ import annotations

from collections.abc import Sequence

from rankdeck.config.catalog import STRATEGIES
from rankdeck.planner.work import Work
from rankdeck.run.plan_lines import StepTime

BEST_SHARE, WORST_SHARE = 0.9, 0.35
KERNEL_LAUNCH_S = 6e-6


def step_time(
    strategy: str,
    work: Sequence[Work],
    *,
    sent_bytes: int = 0,
    link_bytes_per_s: float | None = None,
    bubble: float = 0.0,
    scale: float | None = None,
) -> StepTime | None:
    """The range, None where the device's rates are not known.

    `work` is per device, `sent_bytes` what the busiest rank sends, `scale` measured over predicted time.
    """
    rooflines = [one.roofline_s for one in work]
    known = [roofline for roofline in rooflines if roofline is not None]
    if not known or len(known) < len(rooflines):
        return None
    planning = STRATEGIES[strategy].planning
    compute_s = sum(known) if planning.in_turn else max(known)
    kernels = [one.num_kernels for one in work]
    launches_s = KERNEL_LAUNCH_S * (sum(kernels) if planning.one_thread else max(kernels))
    sends_s = sent_bytes / link_bytes_per_s if link_bytes_per_s else 0.0
    waits_best_s = sends_s if planning.waits_for_sends else 0.0
    low_s = max(compute_s / BEST_SHARE / (1 - bubble) + waits_best_s, sends_s)
    high_s = (compute_s / WORST_SHARE + launches_s) / (1 - bubble) + sends_s / 0.5
    if scale is None:
        return StepTime(low_s=low_s, high_s=high_s)
    middle_s = (low_s * high_s) ** 0.5 * scale
    return StepTime(low_s=middle_s * 0.85, high_s=middle_s * 1.15, calibrated=True)
