"""Final weights as one file, tied names included, and never half a file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from rankdeck.checkpoint.weights import save_weights


def test_tied_weights_appear_under_every_name(tmp_path: Path) -> None:
    shared = torch.randn(4, 3)
    save_weights(tmp_path / "w.safetensors", {"embedding": shared, "head": shared, "row": shared[1]}, {})
    weights = load_file(tmp_path / "w.safetensors")
    assert torch.equal(weights["embedding"], shared) and torch.equal(weights["head"], shared)
    assert torch.equal(weights["row"], shared[1])


def test_a_failed_save_leaves_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "taken"
    target.mkdir()
    with pytest.raises(OSError):
        save_weights(target, {"a": torch.zeros(2)}, {})
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_the_file_has_the_format_metadata_of_transformers(tmp_path: Path) -> None:
    save_weights(tmp_path / "w.safetensors", {"a": torch.zeros(2)}, {"step": "3"})
    with safe_open(tmp_path / "w.safetensors", framework="pt") as file:
        assert file.metadata() == {"step": "3", "format": "pt"}
