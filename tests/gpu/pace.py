"""Steps beside those of a hand-written loop on the same device, and beside the range that was predicted.

The comparison is that of tests/bench/training.py, with a model whose step keeps a GPU busy. Read
tests/bench/hand_written.py for the loop.
"""

from __future__ import annotations

from statistics import median

from tests.bench import training
from tests.bench.training import Case, Pair
from tests.gpu.configurations import Configuration, as_toml
from tests.gpu.device import AnyDevice
from tests.gpu.part import Part
from tests.gpu.peaks import line_of

BAR = 0.995
MOST_ROUNDS = 7
_OURS = {
    True: (Configuration("gpt-small", "bf16"),),
    False: (Configuration("mlp", "fp32"),),
}
_STEPS = {True: 400, False: 60}


def measure(part: Part, device: AnyDevice, rows: int | None) -> None:
    """The part `pace`: pairs of runs, in turn for each configuration, as long as there is time."""
    part.header = ["run", "Rankdeck", "by hand", "ratio"]
    cases = _OURS[device.is_real][:rows]
    pairs: dict[Configuration, list[Pair]] = {case: [] for case in cases}
    longest_s = 0.0
    for number in range(MOST_ROUNDS if device.is_real else 1):
        for case in cases:
            if part.left_s < longest_s:
                continue
            before_s = part.left_s
            try:
                pairs[case].append(_pair(part, case, device, number))
            except SystemExit as error:
                part.fail(f"{case}: {error}")
                return
            longest_s = max(longest_s, before_s - part.left_s)
    for case, measured in pairs.items():
        if not measured:
            part.leave_out(f"{case}: no time left.")
            continue
        _report(part, case, measured, device)


def _pair(part: Part, row: Configuration, device: AnyDevice, number: int) -> Pair:
    config = row.config(device.target(part.facts), small=not device.is_real)
    file = part.folder / f"{row.model}-{row.way}.toml"
    tables = {key: table for key, table in config.to_dict().items() if key in ("model", "data", "train")}
    file.write_text(as_toml(tables))
    case = Case(
        str(row),
        "single",
        1,
        _STEPS[device.is_real],
        config=str(file),
        gpu=device.use if device.is_real else None,
        tolerance=1e-2 if device.is_real else 1e-4,
    )
    (pair,) = training.measure(case, 1, first=number)
    part.row(f"{row} {number + 1}", _ms(pair.ours.step_us), _ms(pair.hand.step_us), f"{pair.ratio:.4f}")
    return pair


def _report(part: Part, case: Configuration, pairs: list[Pair], device: AnyDevice) -> None:
    ratio = median(pair.ratio for pair in pairs)
    part.figure(
        f"{case}: {ratio:.4f} of the hand-written loop's speed, median of {len(pairs)} pairs (bar {BAR})."
    )
    if ratio < BAR:
        part.miss(f"{case}: {ratio:.4f} of the hand-written loop's speed (bar {BAR}).")
    step_s = median(pair.ours.step_us for pair in pairs) / 1e6
    predicted = line_of(case, device.target(part.facts), small=not device.is_real).step
    if predicted is None:
        part.leave_out(f"{case}: no range is predicted for this device.")
        return
    sentence = (
        f"{case}: a step takes {step_s * 1e3:.2f} ms; predicted {predicted.low_s * 1e3:.2f} to "
        f"{predicted.high_s * 1e3:.2f} ms."
    )
    part.figure(sentence)
    if not predicted.low_s <= step_s <= predicted.high_s:
        part.miss(sentence)


def _ms(microseconds: float) -> str:
    return f"{microseconds / 1e3:.3f} ms"
