"""Models whose memory follows from values: a bound beside what real values need, and never a plain "fits"."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
import torch

from rankdeck.config import from_text
from rankdeck.config.gpu_models import GpuModel
from rankdeck.planner import questions
from rankdeck.planner.candidates import Candidate, Target, TargetDevice
from rankdeck.planner.pool import plan_lines_of
from rankdeck.run.plan_lines import PlanLine, words_of
from tests.helpers import experts, hugging_face, planning

OWN, HUGGING_FACE = Path(experts.__file__), Path(hugging_face.__file__)


def text(model: str, argument: str) -> str:
    return f"""
model = {{ use = "{OWN}:{model}", args = {argument} }}
data = {{ use = "digits" }}
train = {{ global_batch = 32, evaluate_every = 0, steps = 8 }}
"""


def planned(toml: str, strategy: str = "single") -> PlanLine:
    target = Target("rehearsal", (TargetDevice(None, None),) * 2, like_cuda=False)
    (line,) = plan_lines_of(from_text(toml, folder=Path.cwd()), [Candidate(strategy)], target)
    return line


def test_routed_rows_are_bounded_from_above() -> None:
    toml = text("experts", '{ routing = "where" }')
    line = planned(toml)
    assert (line.verdict, line.bound) == ("fits", "most") and "At most this much" in line.notes[0]
    needed = planning.measured(toml)[0]
    assert needed <= line.devices[0].active_bytes < 1.5 * needed
    assert planned(toml, "pipeline").bound == "most"
    gpu = GpuModel("small", needed)
    target = Target("small", (TargetDevice("small", needed, 0, gpu),), like_cuda=True)
    (small,) = plan_lines_of(from_text(toml, folder=Path.cwd()), [Candidate("single")], target)
    assert small.verdict == "tight" and words_of(small) == "may fit" and "at most" in (small.reason or "")


def test_what_is_worked_out_once_for_all_that_are_the_same_is_bounded_from_above() -> None:
    toml = text("distinct", "{}")
    line = planned(toml)
    assert (line.verdict, line.bound) == ("fits", "most"), line.reason
    assert planning.measured(toml)[0] <= line.devices[0].active_bytes


def test_branches_are_followed_as_the_first_samples_decide() -> None:
    line = planned(text("experts", '{ routing = "mask" }'))
    assert (line.verdict, line.bound) == ("fits", "least") and "first ones do" in line.notes[0]
    assert "where all that it asks is answered with yes" in line.notes[1]


@pytest.mark.parametrize(("implementation", "bound"), [("grouped_mm", None), ("eager", "least")])
def test_mixtral_is_planned_as_it_is_measured(implementation: str, bound: str | None) -> None:
    pytest.importorskip("transformers", reason="the hf extra is not installed")
    toml = f"""
model = {{ use = "{HUGGING_FACE}:mixtral", args = {{ experts_implementation = "{implementation}" }} }}
data = {{ use = "{HUGGING_FACE}:tokens" }}
loss = {{ use = "model" }}
train = {{ global_batch = 32, evaluate_every = 0, steps = 8 }}
"""
    line = planned(toml)
    assert (line.verdict, line.bound) == ("fits", bound), line.reason
    needed = planning.measured(toml)[0]
    assert abs(line.devices[0].active_bytes / needed - 1) < (0.02 if bound else 0.001)


def test_padding_that_the_samples_have_is_planned_as_it_is_measured() -> None:
    """With it masks are made for every layer, and attention keeps more for backward."""
    pytest.importorskip("transformers", reason="the hf extra is not installed")
    toml = f"""
model = {{ use = "{HUGGING_FACE}:llama_adapted" }}
data = {{ use = "{HUGGING_FACE}:padded_tokens" }}
loss = {{ use = "model" }}
train = {{ global_batch = 32, evaluate_every = 0, steps = 8 }}
"""
    needed = planning.measured(toml)
    assert [device.active_bytes for device in planned(toml).devices] == needed
    whole = planned(toml.replace("padded_tokens", "tokens")).devices[0].active_bytes
    assert whole < 0.99 * needed[0], "without padding nothing is masked"


def test_a_model_that_asks_without_an_end_is_told_so() -> None:
    answers = questions.EitherWay(True)
    ask = functools.partial(answers, torch.ops.aten._local_scalar_dense.default, (torch.tensor(True),), {})
    assert all(ask() is True for _ in range(questions._MOST_QUESTIONS))
    with pytest.raises(RuntimeError, match="without an end"):
        ask()
