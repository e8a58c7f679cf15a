"""The page of a comparison: everything escaped, nothing asked for, whole or not there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from rankdeck.base.errors import ConfigError
from rankdeck.compare.page import render_comparison, write_page
from rankdeck.compare.run_metrics import load_run
from rankdeck.compare.run_ref import RunRef
from rankdeck.compare.table import compare_runs
from tests.helpers.hostile_run import HOSTILE, ParsedPage, write_hostile_run
from tests.helpers.written_run import WrittenRun

_FORBIDDEN_TAGS = {
    "script",
    "link",
    "img",
    "iframe",
    "object",
    "embed",
    "video",
    "audio",
    "form",
    "base",
    "source",
}
_URL_ATTRIBUTES = {"src", "href", "xlink:href", "action", "data", "poster", "srcset", "background"}


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    read_runs = [
        load_run(RunRef(write_hostile_run(tmp_path / "runs", name, losses).path))
        for name, losses in (("one", [4.0, 3.0, 2.0, 1.0]), ("two", [4.0, float("nan"), None, 2.0]))
    ]
    return render_comparison(
        compare_runs([run.run for run in read_runs]), [run.state for run in read_runs], "time"
    )


def test_text_of_a_run_is_escaped(page: str) -> None:
    document = ParsedPage(page)
    assert document.text.count(HOSTILE) >= 4
    assert "<b>one</b>" in document.text and "dp<b>" in document.text
    assert not [tag for tag, _ in document.elements if tag in _FORBIDDEN_TAGS]
    assert not [attrs for _, attrs in document.elements if any(name.startswith("on") for name in attrs)]


def test_the_page_loads_nothing(page: str) -> None:
    document = ParsedPage(page)
    policies = [
        attrs["content"]
        for tag, attrs in document.elements
        if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert not [attrs for _, attrs in document.elements if _URL_ATTRIBUTES & attrs.keys()]
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)
    assert style is not None and "@import" not in style[1] and "//" not in style[1]
    assert set(re.findall(r"url\(([^)]*)\)", page)) <= {f"#clip-{by}" for by in ("step", "time", "samples")}


def test_home_folders_are_shortened(page: str) -> None:
    assert str(Path.home()) not in page and "~/secret/model.py" in page


def test_losses_are_drawn_over_the_chosen_axis(page: str) -> None:
    boxes = {attrs["id"]: "checked" in attrs for tag, attrs in ParsedPage(page).elements if tag == "input"}
    assert boxes == {"by-step": False, "by-time": True, "by-samples": False}
    drawings = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(drawings) == 3
    for drawing in drawings:
        lines = [
            line
            for line in ElementTree.fromstring(drawing).iter("polyline")
            if "raw" not in line.get("class", "")
        ]
        assert [line.get("stroke-dasharray") for line in lines] == ["none", "7 4"]
        assert all(len(line.get("points", "").split()) >= 2 for line in lines)
        for number in re.findall(r"-?[\d.]+", " ".join(line.get("points", "") for line in lines)):
            assert -1000 < float(number) < 3000


def test_the_page_supports_dark_mode_and_print(page: str) -> None:
    assert "prefers-color-scheme: dark" in page and "@media print" in page


def load_comparison(tmp_path: Path) -> Any:
    run = load_run(RunRef(write_hostile_run(tmp_path / "runs", "one", [1.0, 2.0, 3.0, 4.0]).path))
    return compare_runs([run.run, run.run]), [run.state, run.state]


def test_a_page_is_written_atomically(tmp_path: Path) -> None:
    comparison, states = load_comparison(tmp_path)
    file = tmp_path / "page.html"
    file.write_text("old")
    write_page(file, comparison, states, "step")
    assert file.read_text().rstrip().endswith("</html>")
    assert [path.name for path in tmp_path.glob(".page*")] == []
    with pytest.raises(ConfigError, match="cannot be written"):
        write_page(tmp_path / "none" / "page.html", comparison, states, "step")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_page(tmp_path, comparison, states, "step")


def test_runs_without_metrics_have_a_page(tmp_path: Path) -> None:
    empty = WrittenRun(tmp_path / "runs", "empty")
    empty.start()
    run = load_run(RunRef(empty.path))
    empty.lose()
    page = render_comparison(compare_runs([run.run, run.run]), [run.state, run.state], "samples")
    assert "<svg" not in page and "empty vs. empty" in page
