"""A rank says what it is at whenever that may take a time of its own."""

from __future__ import annotations

from pathlib import Path

from tests.helpers.resume_ranks import run

TOML = """
model = { use = "mlp" }
data = { use = "digits" }
train = { steps = 3, global_batch = 64, checkpoint_every = 2, evaluate_every = 2 }
strategy = { use = "single" }
devices = { use = "cpu:1" }
"""


def test_first_step_saves_and_evaluation_batches_send_heartbeats(tmp_path: Path) -> None:
    beats: list[tuple[int, str]] = []
    run(TOML, str(tmp_path / "first"), beat=lambda step, phase: beats.append((step, phase)))
    evaluation = [beat for beat in beats if beat[1] == "evaluation"]
    assert len(evaluation) > 4 and {step for step, _ in evaluation} == {2, 3}
    assert list(dict.fromkeys(beats)) == [
        (1, "first step"),
        (1, "saving"),
        (2, "step"),
        (2, "evaluation"),
        (2, "saving"),
        (3, "step"),
        (3, "evaluation"),
        (3, "saving"),
    ]
    beats.clear()
    longer = TOML.replace("steps = 3", "steps = 5")
    second, first = str(tmp_path / "second"), str(tmp_path / "first")
    run(longer, second, source=first, beat=lambda step, phase: beats.append((step, phase)))
    assert beats[0] == (4, "first step"), "of this attempt"
