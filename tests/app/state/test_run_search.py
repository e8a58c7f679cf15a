"""What is typed above the list of runs, against what it finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.run.row import RunInfo
from rankdeck.run_dir import Labels
from rankdeck_app.state.run_search import RunSearch

RUNS = (
    RunInfo(Path("/r/a"), "GPT · DP · 4", "failed", "dp", labels=Labels(tags=("paper", "two words"))),
    RunInfo(Path("/r/b"), "GPT · DDP · 4", "completed", "ddp", labels=Labels(note="Warm-up too short")),
    RunInfo(Path("/r/c"), "the paper run", "stopped", "ddp", labels=Labels(is_archived=True)),
)


@pytest.mark.parametrize(
    ("typed", "names"),
    [
        ("", "abc"),
        ("gpt", "ab"),
        ("gpt ddp", "b"),
        ("paper", "ac"),
        ("tag:paper", "a"),
        ("tag:pap", "a"),
        ("tag:", "a"),
        ('tag:"two words"', "a"),
        ('tag:"two w', "a"),
        ("-tag:paper", "bc"),
        ("-tag:", "bc"),
        ("state:failed", "a"),
        ("STATE:Fai", "a"),
        ("tag:paper state:failed", "a"),
        ("tag:paper state:stopped", ""),
        ("strategy:dp", "a"),
        ("strategy:ddp -state:stopped", "b"),
        ("note:short", "b"),
        ("short", "b"),
        ('"the paper"', "c"),
        ("is:archived", "c"),
        ("-is:archived", "ab"),
        ("colour:red", ""),
        ("-", "b"),
        (":", "abc"),
        ('"', "abc"),
    ],
)
def test_search_terms_and_fields_match(typed: str, names: str) -> None:
    search = RunSearch(typed)
    assert "".join(info.name for info in RUNS if search.matches(info)) == names


def test_archived_runs_are_found_only_on_request() -> None:
    assert RunSearch("is:archived gpt").includes_archived
    assert not RunSearch("-is:archived archived").includes_archived
