"""`rankdeck plan` as a person and a program call it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.cli import rankdeck_in_process

MLP = """
use = "mlp"
args = { hidden = [512, 512, 512] }
"""
GPT = """
use = "gpt"
args = { layers = 4, heads = 2, width = 64, context = 32, vocabulary = 512, tied = false }
"""
CONFIG = f"""
[model]{MLP}[data]
use = "synthetic"
[train]
steps = 4
global_batch = 16
evaluate_every = 0
[strategy]
use = "dp"
[devices]
use = "cpu:2"
"""


@pytest.fixture
def config(tmp_path: Path) -> str:
    path = tmp_path / "run.toml"
    path.write_text(CONFIG)
    return str(path)


def test_plan_json_has_one_line_per_strategy_with_every_device(config: str) -> None:
    result = rankdeck_in_process("plan", config, "--strategy", "single,dp,ddp", "--json", exit_code=0)
    assert "Rankdeck was not tested with torch" not in result.err  # torch's: tests/e2e/test_torch_versions.py
    lines = result.lines
    assert {line["label"] for line in lines} >= {"single", "dp", "dp, parallel_loss = true", "ddp"}
    for line in lines:
        assert line["verdict"] == "fits" and line["seconds"] > 0
        assert len(line["devices"]) == (1 if line["strategy"] == "single" else 2)
        for device in line["devices"]:
            assert sum(device["by_kind"].values()) == device["active_bytes"] == device["total_bytes"] > 0
    assert [line["strategy"] for line in lines if line.get("configured")] == ["dp"]


def test_named_gpus_are_planned_with_a_capacity_and_advice(config: str) -> None:
    large = ("--set", "train.global_batch=4096")
    command = ("plan", config, "--strategy", "dp", "--devices", "2 x A100-80GB", *large)
    # So little is lacking that one setting makes up for it: more devices are not planned.
    result = rankdeck_in_process(*command, "--capacity", "1080MiB", exit_code=0)
    assert "predicted for 2 x A100-80GB (1080MiB per device)" in result.out
    assert "does not fit" in result.out and "lacks" in result.out
    assert "train.accumulate = 2 saves" in result.out
    json_result = rankdeck_in_process(*command, "--capacity", "1500MiB", "--json", exit_code=0)
    devices = json_result.lines[0]["devices"]
    for device in devices:
        assert device["reserved_bytes"] >= device["active_bytes"]
        assert device["constants_bytes"] > 0
        assert device["total_bytes"] == device["reserved_bytes"] + device["constants_bytes"]


def test_large_layers_of_a_tensor_plan_are_split() -> None:
    """Blocks of this preset are tried out alone, on inputs that the plan recorded in another fake mode."""
    result = rankdeck_in_process(
        "plan", "gpt-ddp", "--strategy", "single,tensor", "--devices", "cpu:2", "--json", exit_code=0
    )
    lines = {line["strategy"]: line for line in result.lines}
    assert lines["tensor"]["verdict"] == "fits", result.out
    unsplit, split = (lines[name]["devices"][0]["by_kind"]["parameters"] for name in ("single", "tensor"))
    assert split < 0.6 * unsplit


def test_the_largest_batch_fits_and_the_next_does_not(config: str) -> None:
    small = ("--set", "model.args.hidden=[256]", "--set", "devices.use=cpu:1", "--capacity", "512KiB")
    command = ("plan", config, "--strategy", "single", *small, "--json")
    result = rankdeck_in_process(*command, "--fit-batch", exit_code=0)
    largest = result.lines[0]["largest_batch"]
    fits = rankdeck_in_process(*command, "--set", f"train.global_batch={largest}")
    beyond = rankdeck_in_process(*command, "--set", f"train.global_batch={largest + 1}")
    assert fits.lines[0]["verdict"] in ("fits", "tight")
    assert beyond.lines[0]["verdict"] == "does-not-fit"


def test_predicted_and_measured_peaks_are_compared(tmp_path: Path) -> None:
    config = tmp_path / "gpt.toml"
    config.write_text(CONFIG.replace(MLP, GPT))
    rankdeck_in_process("train", config, "--json", "--runs", str(tmp_path / "rankdeck-runs"))
    result = rankdeck_in_process("show", "last", "--plan", "--json")
    for device in result.json["devices"]:
        assert device["predicted_peak_bytes"] == pytest.approx(device["peak_bytes"], rel=0.001)
    table = rankdeck_in_process("plan", "--accuracy")
    assert "median error 0.00 %" in table.out and "of 2 devices" in table.out


@pytest.mark.slow
def test_an_async_pipeline_is_predicted_in_steady_state(tmp_path: Path) -> None:
    """Its first steps update nothing and keep no old weights yet."""
    path = tmp_path / "run.toml"
    path.write_text(CONFIG.replace('"dp"', '"pipeline-async"').replace("cpu:2", "cpu:4").replace(MLP, GPT))
    rankdeck_in_process("train", path, "--set", "train.steps=8", exit_code=0)
    devices = rankdeck_in_process("show", "last", "--plan", "--json").json["devices"]
    for device in devices:
        by_kind, stage = device["peak_by_kind"], device["device"]
        one_version = by_kind["optimizer"] / 2  # AdamW keeps two tensors for each
        assert round(by_kind["parameters"] / one_version) == 4 - stage
        # Of several sampled steps one may be higher by what gloo's own thread holds for a moment.
        assert device["predicted_peak_bytes"] == pytest.approx(device["peak_bytes"], rel=0.05)
