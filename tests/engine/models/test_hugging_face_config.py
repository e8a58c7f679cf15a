"""A Hugging Face model from its config.json: built, planned under some strategies, refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rankdeck.base.errors import ModelError
from rankdeck.config import from_text
from rankdeck.models import hugging_face
from rankdeck.planner.fake_pass import PassRequest, fake_pass

pytest.importorskip("transformers", reason="the hf extra is not installed")
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "vocab_size": 64,
    "max_position_embeddings": 16,
    "transformers_version": "4.50.0",
}


@pytest.fixture
def config_json(tmp_path: Path) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    return path


def test_a_model_is_built_with_changed_fields(config_json: Path) -> None:
    model = hugging_face.model(config=str(config_json.parent), num_hidden_layers=2)
    assert type(model).__name__ == "LlamaForCausalLM"
    assert len(model.model.layers) == 2


@pytest.mark.parametrize("strategy", ["single", "dp", "model"])
def test_a_model_from_a_config_is_planned(config_json: Path, strategy: str) -> None:
    text = f"""
model = {{ use = "rankdeck.models.hugging_face:model", args = {{ config = "{config_json}" }} }}
data = {{ use = "rankdeck.models.hugging_face:tokens", args = {{ config = "{config_json}", length = 16 }} }}
loss = {{ use = "model" }}
strategy = {{ use = "{strategy}" }}
devices = {{ use = "cpu:2" }}
train = {{ global_batch = 4 }}
"""
    result = fake_pass(PassRequest(from_text(text, folder=config_json.parent), 2, like_cuda=True))
    assert all(device.peak_bytes > 0 for device in result.devices.values())


def test_an_invalid_model_config_is_refused(config_json: Path) -> None:
    config_json.write_text(json.dumps({**LLAMA, "architectures": ["NoSuchModel"]}))
    with pytest.raises(ModelError, match="NoSuchModel"):
        hugging_face.model(config=str(config_json))
    with pytest.raises(ModelError, match="is not a Hugging Face configuration"):
        hugging_face.model(config=str(config_json.parent / "missing.json"))
    config_json.write_text("{}")
    with pytest.raises(ModelError, match="vocab_size"):
        hugging_face.tokens(config=str(config_json), length=4)
