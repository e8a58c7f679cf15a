"""A run is called by what it is, never by a preset; equal names are told apart by what differs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from rankdeck.config import from_dict, from_text, load, presets
from rankdeck.config.naming import title_of, unique_title


@pytest.mark.parametrize(
    ("changes", "num_devices", "title"),
    [
        ({}, 4, "GPT · DP · 4"),
        ({"strategy": "ddp"}, 2, "GPT · DDP · 2"),
        ({"strategy": "single"}, 1, "GPT · Single"),
        ({"strategy": "model", "devices": "cpu:3"}, None, "GPT · Model parallel · 3"),
        ({"devices": "gpu:0,5"}, None, "GPT · DP · 2"),
        ({}, None, "GPT · DP"),
        ({"name": "my own"}, 4, "my own"),
    ],
)
def test_a_changed_preset_is_titled_by_its_contents(
    changes: dict[str, str], num_devices: int | None, title: str
) -> None:
    path = presets.find_preset("gpt-dp")
    assert path is not None
    assert title_of(load(path, **changes), num_devices) == title  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "stem", "name"),
    [
        ("", "night-run", "night-run"),
        ('name = " My run "', "night-run", "My run"),
        ('name = "GPT DP"', "night-run", ""),
        ('name = "gpt-dp"', "night-run", ""),
        ('name = ""', "1234-1", ""),
        ("", "gpt-dp", ""),
    ],
)
def test_a_preset_name_is_not_kept_as_run_name(tmp_path: Path, text: str, stem: str, name: str) -> None:
    config = from_text(text, folder=tmp_path, stem=stem)
    assert config.name == name
    assert from_text(config.to_toml(), folder=tmp_path, stem="config").name == name, "and stays so in its run"


def test_a_user_factory_names_the_model(tmp_path: Path) -> None:
    config = from_dict({"model": {"use": "nets/small.py:make_net"}, "name": ""}, folder=tmp_path)
    assert title_of(config) == "make_net · Single"


def test_equal_titles_get_the_first_differing_option() -> None:
    def tables(width: int = 8, lr: float = 0.1, amp: bool = False, **top: object) -> dict[str, object]:
        model = {"use": "gpt" if width else "b/nets.py:make", "args": {"width": width}}
        return {"model": model, "train": {"lr": lr, "amp": amp}, **top}

    runs: dict[str, Callable[[], dict[str, object]]] = {}
    for changed, title in (
        (tables(), "A"),
        (tables(lr=0.2, amp=True), "A · lr 0.2"),
        (tables(amp=True), "A · amp true"),
        (tables(lr=0.2), "A · lr 0.2 · amp false"),
        (tables(lr=0.2), "A · lr 0.2 · amp false #2"),
        (tables(width=0), "A · model nets.py:make"),
        (tables(), "A #2"),
        (tables(folder="/elsewhere", launch={"timeout_s": 1}, name="x"), "A #3"),
    ):
        assert unique_title("A", changed, runs) == title
        runs[title] = partial(dict, changed)
    assert unique_title("B", tables(), runs) == "B"


@pytest.mark.parametrize(
    ("args", "before", "title"),
    [
        (["--lr", "0.2", "--epochs", "3"], ["--lr", "0.1", "--epochs", "3"], "t · lr 0.2"),
        (["--lr=0.2"], ["--lr=0.1"], "t · lr 0.2"),
        (["data/big/b.txt"], ["data/a.txt"], "t · b.txt"),
        (["a", "b"], ["b", "a"], "t #2"),
        (["x" * 90], [], f"t · {'x' * 24}…"),
    ],
)
def test_runs_of_a_script_are_titled_by_differing_arguments(
    args: list[str], before: list[str], title: str
) -> None:
    assert unique_title("t", {"script": {"args": args}}, {"t": lambda: {"script": {"args": before}}}) == title
