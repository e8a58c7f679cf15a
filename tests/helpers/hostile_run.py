"""A run whose every word is markup that does harm where it is not escaped, and what a page of it holds."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from rankdeck import events
from rankdeck.base.errors import Problem
from rankdeck.run_dir import Labels, write_labels
from tests.helpers.written_run import MIB, WrittenRun, device_infos

HOSTILE = "<script>alert(1)</script>\"'&<img src=x onerror=alert(1)>"


class ParsedPage(HTMLParser):
    """Elements with their attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


def write_hostile_run(runs: Path, name: str, losses: list[float | None]) -> WrittenRun:
    run = WrittenRun(runs, name, {"folder": str(Path.home() / "secret")})
    run.start(1, device_infos(2), steps=4, strategy="dp<b>")
    run.write_steps(0, 1, losses)
    run.write_memory(0, 1, {0: {"gathered": 80 * MIB}, 1: {"parameters": 10 * MIB}})
    message = f"\u202e\x1b[1m{HOSTILE} in {Path.home()}/secret/model.py"
    run.writer("supervisor").write(events.ProblemRaised(problem=Problem("failed", message)))
    run.writer("rank-0").write(events.Comm(rank=0, step=1, algorithm=f"ring {HOSTILE}", sent_bytes=9))
    (run.path / "environment.json").write_text(
        f'{{"host": "<b>{name}</b>", "title": "x", "command_line": ["{name}", "<i>"]}}'
    )
    write_labels(run.path, Labels(name=f"{name} {HOSTILE}"))
    run.end("failed", 1)
    return run
