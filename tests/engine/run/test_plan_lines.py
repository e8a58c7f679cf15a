"""Lines of a plan: verdicts, marks, and the way through JSON."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from rankdeck.base.errors import Problem
from rankdeck.base.phrases import join_sentences, phrase
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run import plan_lines, plan_marks
from rankdeck.run.plan_lines import PlanLine, PlannedDevice, StepTime

GIB = 2**30


def make_line(
    label: str, *total_gib: float, low_s: float = 1.0, high_s: float = 2.0, capacity_gib: int = 24
) -> PlanLine:
    devices = [
        PlannedDevice(
            device=index,
            active_bytes=round(total * GIB),
            total_bytes=round(total * GIB),
            capacity_bytes=capacity_gib * GIB,
        )
        for index, total in enumerate(total_gib)
    ]
    verdict, reason = plan_lines.verdict_of(devices)
    step = StepTime(low_s=low_s, high_s=high_s)
    return PlanLine(
        strategy=label,
        options={},
        label=label,
        verdict=verdict,
        reason=reason,
        devices=devices,
        step=step,
    )


def test_the_fullest_device_decides() -> None:
    line = make_line("dp", 25, 3)
    assert line.verdict == "does-not-fit"
    assert line.reason == "device 0 lacks 1.0 GiB: it would need 25.0 GiB."
    assert make_line("ddp", 23, 3).verdict == "tight"
    assert make_line("fsdp", 12, 3).verdict == "fits"


@pytest.mark.parametrize(("total_gib", "verdict"), [(18.0, "fits"), (18.01, "tight"), (20.0, "tight")])
def test_a_plan_fits_with_a_tenth_of_the_memory_left(total_gib: float, verdict: str) -> None:
    device = PlannedDevice(
        device=0,
        active_bytes=0,
        total_bytes=round(total_gib * GIB),
        capacity_bytes=24 * GIB,
        others_bytes=4 * GIB,
    )
    assert plan_lines.verdict_of([device])[0] == verdict


def test_memory_of_other_processes_is_subtracted() -> None:
    device = PlannedDevice(
        device=1, active_bytes=0, total_bytes=20 * GIB, capacity_bytes=24 * GIB, others_bytes=6 * GIB
    )
    verdict, reason = plan_lines.verdict_of([device])
    assert verdict == "does-not-fit"
    assert reason is not None and "in addition to 6.0 GiB used by other processes" in reason


def test_without_a_capacity_every_plan_fits() -> None:
    assert plan_lines.verdict_of([PlannedDevice(device=0, active_bytes=1, total_bytes=10**15)]) == (
        "fits",
        None,
    )


def test_virtual_devices_share_the_free_host_memory() -> None:
    devices = [PlannedDevice(device=index, active_bytes=1, total_bytes=6 * GIB) for index in range(4)]
    assert plan_lines.verdict_of(devices, 27 * GIB) == ("fits", None)
    assert plan_lines.verdict_of(devices, 26 * GIB)[0] == "tight"
    verdict, reason = plan_lines.verdict_of(devices, 23 * GIB)
    assert verdict == "does-not-fit"
    assert reason == "Together, the devices need 24.0 GiB of this machine's memory; 23.0 GiB is available."


def recommended_line(lines: list[PlanLine]) -> tuple[str, str]:
    marks = plan_marks.mark_lines(lines)
    assert marks.recommended is not None
    return lines[marks.recommended].label, marks.reason


def test_with_enough_memory_the_fastest_is_recommended() -> None:
    lines = [
        make_line("single", 10, low_s=2, high_s=9),
        make_line("ddp", 12, 12, low_s=0.53, high_s=4.26),
        make_line("model", 1, 1, low_s=1.4, high_s=20),
        make_line("hybrid", 4, 4, low_s=1.0, high_s=8.1),  # its range overlaps that of ddp
    ]
    assert recommended_line(lines) == (
        "ddp",
        "No other candidate that fits with room to spare is predicted to be faster.",
    )
    assert lines[plan_marks.mark_lines(lines).cheapest or 0].label == "model"


def test_of_equally_fast_lines_the_simplest_is_recommended() -> None:
    viewed = make_line("ddp", 11, 11, low_s=0.98, high_s=1.96)
    viewed.options, viewed.label = {"gradient_as_bucket_view": True}, "viewed"
    lines = [
        make_line("fsdp", 6, 6, low_s=1, high_s=2),
        viewed,
        make_line("dp", 14, 4),
        make_line("ddp", 12, 12),
    ]
    assert recommended_line(lines) == (
        "ddp",
        "It is the simplest of the fastest candidates (within 10 %) that fit with room to spare.",
    )
    lines[3].step = StepTime(low_s=1.2, high_s=2.4)  # now it is not among the fastest
    assert recommended_line(lines)[0] == "fsdp", (
        "one option less than the other, and no thread that drives two"
    )


def test_without_step_times_parallel_devices_are_preferred() -> None:
    lines = [
        make_line(name, *[2] * count) for name, count in (("single", 1), ("dp", 2), ("model", 2), ("ddp", 2))
    ]
    for line in lines:
        line.step = None
    strategy, reason = recommended_line(lines)
    assert strategy == "ddp" and "step times are unknown" in reason and "uses all devices at once" in reason
    assert recommended_line(lines[:1])[0] == "single"
    lines[0].is_bound = True
    assert recommended_line(lines[:1])[1].startswith(
        "As far as Rankdeck can tell, it fits with room to spare"
    )


def test_an_untraceable_line_is_not_called_impossible() -> None:
    unknown = PlanLine(strategy="fsdp", label="fsdp", options={}, verdict="cannot", reason="It reads values.")
    assert plan_lines.plan_verdict_text(unknown) == "not predicted"
    unknown.refusal = Problem("heads", "The model has 3 heads.")
    assert plan_lines.plan_verdict_text(unknown) == "cannot"


def test_the_only_line_that_fits_has_no_reason_about_speed() -> None:
    cannot = PlanLine(strategy="fsdp", label="fsdp", options={}, verdict="cannot")
    lines = [make_line("dp", 30, low_s=1, high_s=2), make_line("ddp", 12, low_s=3, high_s=4), cannot]
    assert recommended_line(lines) == ("ddp", "It is the only candidate that fits with room to spare.")
    assert recommended_line(lines[1:2]) == ("ddp", "It fits with room to spare.")


def test_with_tight_memory_the_smallest_is_recommended() -> None:
    lines = [
        make_line("ddp", 23.5, 23.5, low_s=1, high_s=2),
        make_line("fsdp", 22.5, 22.5, low_s=5, high_s=9),
        make_line("dp", 30),
    ]
    strategy, reason = recommended_line(lines)
    assert strategy == "fsdp" and "tight" in reason


def test_stale_weights_are_recommended_only_without_alternatives() -> None:
    stale = make_line("pipeline-async", 2, 2, low_s=0.1, high_s=0.2)
    lines = [make_line("ddp", 12, 12, low_s=1, high_s=2), stale, make_line("fsdp", 6, 6, low_s=3, high_s=4)]
    strategy, reason = recommended_line(lines)
    assert strategy == "ddp"
    assert reason.endswith(
        "faster. pipeline-async is excluded: by design, its weights differ from those on one device."
    )
    assert plan_marks.mark_lines(lines).cheapest == 1
    assert plan_marks.mark_lines([make_line("ddp", 30), stale]).recommended is None
    assert recommended_line([stale]) == ("pipeline-async", "It fits with room to spare.")


def test_nothing_is_recommended_where_nothing_fits() -> None:
    marks = plan_marks.mark_lines([make_line("single", 30), make_line("dp", 40)])
    assert (marks.recommended, marks.cheapest, marks.reason) == (None, 0, "")


def random_lines(random: Random) -> list[PlanLine]:
    """A table as it may come: other processes, bounds, lines without step times or figures."""
    others = [random.choice([0, 0, 4 * GIB]) for _ in range(4)]
    scale, lines = random.choice([0.3, 1.0, 1.6]), []
    for name in random.sample(list(STRATEGIES), random.randint(1, len(STRATEGIES))):
        low_s = random.choice([0.5, 1.0, 1.05, 3.0])
        line = make_line(
            name, *[random.uniform(1, 24) * scale for _ in others], low_s=low_s, high_s=2 * low_s
        )
        for device, others_bytes in zip(line.devices, others, strict=True):
            device.others_bytes = others_bytes
        line.verdict, line.reason = plan_lines.verdict_of(line.devices)
        line.bound = random.choice([None, None, plan_lines.AT_LEAST, plan_lines.AT_MOST])
        line.is_bound = line.bound is not None
        if random.random() < 0.2:
            line.step = None
        if random.random() < 0.1:
            line.devices, line.verdict = [], plan_lines.CANNOT
        lines.append(line)
    return lines


def middle_s(line: PlanLine) -> float:
    assert line.step is not None
    return float((line.step.low_s * line.step.high_s) ** 0.5)


def largest_bytes(line: PlanLine) -> int:
    assert line.fullest_device is not None
    return line.fullest_device.total_bytes


@pytest.mark.parametrize("seed", range(40))
def test_the_recommendation_holds_for_the_rows_as_shown(seed: int) -> None:
    for lines in (random_lines(Random(f"{seed} {turn}")) for turn in range(25)):
        marks = plan_marks.mark_lines(lines)
        if marks.cheapest is not None:
            assert largest_bytes(lines[marks.cheapest]) == min(
                map(largest_bytes, (line for line in lines if line.devices))
            )
        every = [line for line in lines if not plan_marks.has_stale_weights(line)] or lines
        texts = [plan_lines.plan_verdict_text(line) for line in every]
        with_figures = [line for line in every if line.devices]
        if marks.recommended is None:
            assert not {"fits", "tight", "may fit"} & {
                plan_lines.plan_verdict_text(line) for line in with_figures
            }
            continue
        taken = lines[marks.recommended]
        text = plan_lines.plan_verdict_text(taken)
        alike = [line for line, word in zip(every, texts, strict=True) if word == text]
        assert text == next(word for word in ("fits", "tight", "may fit") if word in texts) or (
            text == "may fit" and "fits" not in texts and taken.verdict == "fits"
        )
        if "is predicted to be faster" in marks.reason:
            rivals = [line for line in alike if line.step is not None and line.verdict == taken.verdict]
            assert middle_s(taken) == min(map(middle_s, rivals))
        if "within 10 %" in marks.reason:
            rivals = [line for line in alike if line.step is not None and line.verdict == taken.verdict]
            assert middle_s(taken) <= 1.1 * min(map(middle_s, rivals))
        if "the only candidate that fits" in marks.reason:
            assert texts.count(text) == 1
        if "needs the least" in marks.reason:
            assert largest_bytes(taken) == min(map(largest_bytes, alike))
        assert ("tight" in marks.reason) == (taken.verdict == "tight")


@pytest.mark.parametrize(
    ("low_s", "high_s", "text"),
    [
        (1.299, 3.402, "1.3–3.4 s"),
        (1.7, 2.3, "about 2 s"),
        (0.0015, 0.0088, "1.5–8.8 ms"),
        (0.11, 0.29, "110–290 ms"),
        (0.1304, 0.1764, "about 150 ms"),
        (0.0911, 1.23, "0.091–1.2 s"),
        (0.000123, 0.000456, "0.12–0.46 ms"),
        (96.4, 512.3, "96–510 s"),
        (2.0, 2.0, "about 2 s"),
    ],
)
def test_a_step_time_is_rounded_to_two_digits(low_s: float, high_s: float, text: str) -> None:
    assert plan_lines.step_time_text(StepTime(low_s=low_s, high_s=high_s)) == text


def test_a_line_round_trips_through_json() -> None:
    before = make_line("ddp", 1.5)
    assert plan_lines.decode(plan_lines.encode(before)) == before


def test_json_keeps_texts_and_their_arguments() -> None:
    inner = phrase("device {device} lacks {size}.", device=0, size="1 GiB")
    message = phrase("In the worst case: {reason}", reason=inner)
    line = msgspec.structs.replace(
        make_line("dp", 25), reason=join_sentences((message, None, phrase("Choose another.")))
    )
    read = plan_lines.decode(plan_lines.encode(line))
    assert read == line
    assert read.reason == "In the worst case: device 0 lacks 1 GiB. Choose another."
    assert {"device 0 lacks 1 GiB.", "Choose another.", str(message)} < read.phrases.keys()
    assert read.phrases["device 0 lacks 1 GiB."].template == "device {device} lacks {size}."
    assert join_sentences((None, "")) == "" and join_sentences(("Only one.",)) == "Only one."
