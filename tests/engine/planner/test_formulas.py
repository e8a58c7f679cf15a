"""The planner against what the literature says of a transformer's memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.config import RunConfig, from_text
from rankdeck.planner.fake_pass import PassRequest, PassResult, fake_pass
from tests.helpers import eager_gpt

EAGER = Path(eager_gpt.__file__)
GPT2 = """
data = { use = "synthetic" }
train = { global_batch = 4, optimizer = { use = "adamw" } }
[model]
use = "gpt"
args = { layers = 12, heads = 12, width = 768, context = 1024, vocabulary = 50257, tied = true }
"""
GPT2_PARAMETERS = 124_439_808


def config(text: str) -> RunConfig:
    return from_text(text, folder=Path.cwd())


def plan_eager(layers: int, batch: int) -> PassResult:
    text = f"""
model = {{ use = "{EAGER}:build", args = {{ layers = {layers} }} }}
data = {{ use = "{EAGER}:tokens" }}
train = {{ global_batch = {batch}, optimizer = {{ use = "sgd" }} }}
"""
    return fake_pass(PassRequest(config(text), 1, like_cuda=True))


def test_gpt2_with_adamw_takes_sixteen_bytes_per_parameter() -> None:
    by_kind = fake_pass(PassRequest(config(GPT2), 1, like_cuda=True)).devices[0].live_by_kind
    assert by_kind["parameters"] == 4 * GPT2_PARAMETERS
    assert by_kind["parameters"] + by_kind["gradients"] + by_kind["optimizer"] == 16 * GPT2_PARAMETERS


@pytest.mark.parametrize("batch", [4, 8])
def test_layer_activations_match_megatrons_formula(batch: int) -> None:
    """s b h (34 + 5 a s / h) bytes in 16 bits, with dropout and attention that is written out.

    Source: Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (2022).
    """
    few, many = 2, 8
    peaks = [plan_eager(layers, batch).devices[0].peak_by_kind["activations"] for layers in (few, many)]
    length, width, heads = eager_gpt.LENGTH, eager_gpt.WIDTH, eager_gpt.HEADS
    formula = length * batch * width * (34 + 5 * heads * length / width)
    assert (peaks[1] - peaks[0]) / (many - few) == pytest.approx(formula, rel=0.02)
