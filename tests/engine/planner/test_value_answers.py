"""Models whose memory follows from values: a bound beside what real values need, and never a plain "fits"."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from rankdeck.config import from_text
from rankdeck.config.gpu_models import GpuModel
from rankdeck.planner import value_answers
from rankdeck.planner.candidates import Candidate, Target, TargetDevice
from rankdeck.planner.pool import plan_candidates
from rankdeck.run.plan_lines import PlanLine, plan_verdict_text
from tests.helpers import experts, hugging_face, planning

OWN, HUGGING_FACE = Path(experts.__file__), Path(hugging_face.__file__)


def model_config(model: str, argument: str) -> str:
    return f"""
model = {{ use = "{OWN}:{model}", args = {argument} }}
data = {{ use = "digits" }}
train = {{ global_batch = 32, evaluate_every = 0, steps = 8 }}
"""


def plan(toml: str, strategy: str = "single") -> PlanLine:
    target = Target("rehearsal", (TargetDevice(None, None),) * 2, like_cuda=False)
    (line,) = plan_candidates(from_text(toml, folder=Path.cwd()), [Candidate(strategy)], target)
    return line


def test_routed_tokens_give_an_upper_bound() -> None:
    toml = model_config("experts", '{ routing = "where" }')
    line = plan(toml)
    assert (line.verdict, line.bound) == ("fits", "most") and "At most this much" in line.notes[0]
    needed = planning.measure_peaks(toml)[0]
    assert needed <= line.devices[0].active_bytes < 1.5 * needed
    assert plan(toml, "pipeline").bound == "most"
    gpu = GpuModel("small", needed)
    target = Target("small", (TargetDevice("small", needed, 0, gpu),), like_cuda=True)
    (small,) = plan_candidates(from_text(toml, folder=Path.cwd()), [Candidate("single")], target)
    assert (
        small.verdict == "tight"
        and plan_verdict_text(small) == "may fit"
        and "In the worst case" in (small.reason or "")
    )


def test_unique_gives_an_upper_bound() -> None:
    toml = model_config("distinct", "{}")
    line = plan(toml)
    assert (line.verdict, line.bound) == ("fits", "most"), line.reason
    assert planning.measure_peaks(toml)[0] <= line.devices[0].active_bytes


def test_branches_follow_the_first_samples() -> None:
    line = plan(model_config("experts", '{ routing = "mask" }'))
    assert (line.verdict, line.bound) == (
        "fits",
        "least",
    ) and "the branches that the first samples take" in line.notes[0]
    assert "every value read is True or 1" in line.notes[1]


@pytest.mark.parametrize(("implementation", "bound"), [("grouped_mm", None), ("eager", "least")])
def test_mixtral_is_planned_as_it_is_measured(implementation: str, bound: str | None) -> None:
    pytest.importorskip("transformers", reason="the hf extra is not installed")
    toml = f"""
model = {{ use = "{HUGGING_FACE}:mixtral", args = {{ experts_implementation = "{implementation}" }} }}
data = {{ use = "{HUGGING_FACE}:tokens" }}
loss = {{ use = "model" }}
train = {{ global_batch = 32, evaluate_every = 0, steps = 8 }}
"""
    line = plan(toml)
    assert (line.verdict, line.bound) == ("fits", bound), line.reason
    needed = planning.measure_peaks(toml)[0]
    assert abs(line.devices[0].active_bytes / needed - 1) < (0.02 if bound else 0.001)


def test_padding_is_planned_as_it_is_measured() -> None:
    """With it masks are made for every layer, and attention keeps more for backward."""
    pytest.importorskip("transformers", reason="the hf extra is not installed")
    toml = f"""
model = {{ use = "{HUGGING_FACE}:llama_adapted" }}
data = {{ use = "{HUGGING_FACE}:padded_tokens" }}
loss = {{ use = "model" }}
train = {{ global_batch = 32, evaluate_every = 0, steps = 8 }}
"""
    needed = planning.measure_peaks(toml)
    assert [device.active_bytes for device in plan(toml).devices] == needed
    full_bytes = plan(toml.replace("padded_tokens", "tokens")).devices[0].active_bytes
    assert full_bytes < 0.99 * needed[0], "without padding nothing is masked"


def test_endless_questions_raise_an_error() -> None:
    answers = value_answers.FixedAnswer(True)
    ask = functools.partial(answers, torch.ops.aten._local_scalar_dense.default, (torch.tensor(True),), {})
    assert all(ask() is True for _ in range(value_answers._MAX_QUESTIONS))
    with pytest.raises(RuntimeError, match="more than 1000 tensor values"):
        ask()
