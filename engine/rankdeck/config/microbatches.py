"""Rules for the number of microbatches of a pipeline, checked before a run starts.

Each schedule has its own rule; `STAGES_PER_DEVICE` gives each schedule's number of stages per device. Source:
torch.distributed.pipelining.schedules. Nothing here imports torch.
"""

from __future__ import annotations

from rankdeck.base.errors import Problem, format_choices
from rankdeck.base.phrases import phrase

STAGES_PER_DEVICE = {
    "gpipe": 1,
    "1f1b": 1,
    "1f1b-by-hand": 1,
    "interleaved-1f1b": 2,
    "looped-bfs": 2,
    "interleaved-zero-bubble": 2,
    "zbv": 2,
    "dualpipev": 2,
}


def can_schedule(schedule: str, num_devices: int, microbatches: int) -> bool:
    """Return whether the schedule accepts this number of microbatches."""
    # torch's 1F1B refuses fewer microbatches than stages, and ours does the same.
    if schedule in ("1f1b", "1f1b-by-hand"):
        return microbatches >= num_devices
    if schedule == "dualpipev":
        # DualPipeV needs a microbatch for each of the two stages of every rank.
        return microbatches >= 2 * num_devices
    if schedule in ("interleaved-1f1b", "interleaved-zero-bubble"):
        # torch splits the microbatches into this many rounds of equal size.
        return microbatches % max(1, microbatches // num_devices) == 0
    return True


def microbatch_choices(schedule: str, num_devices: int, part_batch: int) -> list[int]:
    """Return the numbers of microbatches that a batch of `part_batch` samples can be split into."""
    return [
        m for m in range(1, part_batch + 1) if part_batch % m == 0 and can_schedule(schedule, num_devices, m)
    ]


def default_microbatches(schedule: str, num_devices: int, part_batch: int) -> int | None:
    """Return the accepted number of microbatches closest to twice the number of stages, the larger one in a
    tie; None if no number is accepted."""
    # In 1F1B the bubble is (stages - 1) / (microbatches + stages - 1), so below a third. More microbatches
    # would shrink it, but also the matrices.
    target = 2 * num_devices * STAGES_PER_DEVICE[schedule]
    return min(
        microbatch_choices(schedule, num_devices, part_batch),
        key=lambda m: (abs(m - target), -m),
        default=None,
    )


def microbatch_problem(
    schedule: str, num_devices: int, global_batch: int, accumulate: int, microbatches: int | None
) -> Problem | None:
    """Return the problem with strategy.microbatches, or None. If `microbatches` is None, check the default
    instead."""
    part_batch = global_batch // accumulate
    batch = f"train.global_batch = {global_batch}"
    if accumulate > 1:
        batch += f" / train.accumulate = {accumulate}"
    possible = microbatch_choices(schedule, num_devices, part_batch)
    if not possible:
        smallest = 2 * num_devices if schedule == "dualpipev" else num_devices
        return Problem(
            "microbatches",
            phrase(
                "{batch} cannot be split into microbatches for {schedule} on {devices} devices.",
                batch=batch,
                schedule=schedule,
                devices=num_devices,
            ),
            path="train.global_batch",
            advice=phrase(
                "Use a multiple of {least} samples per accumulation step, or schedule = gpipe.",
                least=smallest,
            ),
            cure={"strategy.schedule": "gpipe"},
        )
    if microbatches is None or microbatches in possible:
        return None
    if part_batch % microbatches:
        message = phrase(
            "strategy.microbatches = {microbatches} does not divide {batch}.",
            microbatches=microbatches,
            batch=batch,
        )
    else:
        message = phrase(
            "strategy.microbatches = {microbatches} does not fit {schedule} on {devices} devices.",
            microbatches=microbatches,
            schedule=schedule,
            devices=num_devices,
        )
    nearest = min(possible, key=lambda choice: abs(choice - microbatches))
    return Problem(
        "microbatches",
        message,
        path="strategy.microbatches",
        advice=phrase("Use {choices}.", choices=format_choices(map(str, possible))),
        cure={"strategy.microbatches": nearest},
    )


def async_pipeline_problem(mode: str, num_devices: int, accumulate: int) -> Problem | None:
    """Return the problem with train.accumulate in a pipeline without flushes, or None."""
    if mode == "stash" and accumulate > 1:
        return Problem(
            "microbatches",
            phrase(
                "train.accumulate = {accumulate}, but with mode = stash every microbatch of "
                "train.global_batch is a separate update.",
                accumulate=accumulate,
            ),
            path="train.accumulate",
            advice=phrase('Set train.accumulate = 1, or strategy.mode = "2bw".'),
            cure={"train.accumulate": 1},
        )
    if mode == "2bw" and accumulate < num_devices:
        return Problem(
            "microbatches",
            phrase(
                "train.accumulate = {accumulate} is too small for {stages} stages: two weight "
                "versions are not enough.",
                accumulate=accumulate,
                stages=num_devices,
            ),
            path="train.accumulate",
            advice=phrase("Set train.accumulate = {least} or more.", least=num_devices),
            cure={"train.accumulate": num_devices},
        )
    return None
