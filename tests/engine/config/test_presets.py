"""Every preset is whole, says what one learns from it, and is found by its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.config import load, presets
from rankdeck.config.catalog import STRATEGIES
from rankdeck.run_dir import slug

PRESETS = presets.list_presets()
NAMES = [
    "digits-ddp",
    "digits-mlp",
    "digits-resnet18-ddp",
    "gpt-async-pipeline",
    "gpt-ddp",
    "gpt-ddp-all-to-all",
    "gpt-ddp-bf16-compression",
    "gpt-ddp-powersgd",
    "gpt-ddp-reduce-broadcast",
    "gpt-ddp-ring",
    "gpt-dp",
    "gpt-dp-parallel-loss",
    "gpt-fsdp",
    "gpt-hybrid-ddp-pipeline",
    "gpt-hybrid-fsdp-tensor",
    "gpt-model-parallel",
    "gpt-pipeline-1f1b",
    "gpt-pipeline-gpipe",
    "gpt-pipeline-interleaved",
    "gpt-pipeline-zero-bubble",
    "gpt-stdlib",
    "gpt-tensor-parallel",
    "resnet50-images",
    "resnet50-model-parallel",
]


def test_all_presets_are_listed_by_name() -> None:
    assert [card.name for card in PRESETS] == NAMES


@pytest.mark.parametrize("card", PRESETS, ids=lambda card: card.name)
def test_a_preset_is_valid_and_matches_its_summary(card: presets.Preset) -> None:
    config = load(card.path)
    assert (config.strategy.use, config.devices.use) == (card.strategy, card.devices)
    assert config.name == "" and slug(card.title) == card.name, "a preset's name is no run's"
    assert card.needs_gpu == (card.name == "resnet50-images")


@pytest.mark.parametrize("card", PRESETS, ids=lambda card: card.name)
def test_a_preset_states_its_lesson_and_has_short_lines(card: presets.Preset) -> None:
    assert card.lesson.startswith(("See ", "Train ")) and card.lesson != card.title
    assert all(len(line) <= 110 for line in card.path.read_text().splitlines())
    assert "#" not in card.text


@pytest.mark.parametrize("card", PRESETS, ids=lambda card: card.name)
@pytest.mark.parametrize("num_devices", [1, 2, 4])
def test_a_preset_divides_over_the_usual_numbers_of_devices(card: presets.Preset, num_devices: int) -> None:
    if num_devices < STRATEGIES[card.strategy].min_devices:
        with pytest.raises(ConfigError, match=r"needs 2 devices"):
            load(card.path, devices=f"cpu:{num_devices}")
        return
    if card.strategy == "hybrid" and num_devices != 4:
        with pytest.raises(ConfigError, match=r"2 x .* 2 = 4 devices"):
            load(card.path, devices=f"cpu:{num_devices}")
        return
    config = load(card.path, devices=f"cpu:{num_devices}")
    assert config.selection.count == num_devices


def test_a_preset_is_found_by_its_name() -> None:
    preset = presets.find_preset("digits-mlp")
    assert preset is not None and preset.name == "digits-mlp.toml"


@pytest.mark.parametrize("name", ["digits-mpl", "../presets/digits-mlp", "", "/etc/passwd"])
def test_a_preset_is_not_found_by_path(name: str) -> None:
    assert presets.find_preset(name) is None


def test_a_damaged_preset_is_left_out_of_the_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "good.toml").write_text("# One.\n#\n# Two,\n# three.\nname = 'Good'\n# not this\n")
    (tmp_path / "bad.toml").write_text("= 5")
    (tmp_path / "odd.toml").write_text("strategy = 5")
    monkeypatch.setattr(presets, "presets_folder", lambda: tmp_path)
    (card,) = presets.list_presets()
    assert (card.name, card.title, card.text) == ("good", "Good", "One.\n\nTwo, three.")
