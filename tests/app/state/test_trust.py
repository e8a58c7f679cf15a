"""Trust: asked once per folder, true below it, never through a link."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankdeck.config import from_dict
from rankdeck.config.consent import record_start_consent
from rankdeck.config.script import ScriptConfig, ScriptTable
from rankdeck_app.state.trust import Trust


@pytest.fixture
def trust(tmp_path: Path) -> Trust:
    return Trust(tmp_path / "settings" / "trusted.toml")


def test_nothing_is_trusted_by_default(trust: Trust, tmp_path: Path) -> None:
    assert trust.untrusted_folders([tmp_path]) == [tmp_path] and not trust.path.exists()


def test_trust_covers_subfolders_and_no_siblings(trust: Trust, tmp_path: Path) -> None:
    trust.add(tmp_path / "work")
    assert trust.is_trusted(tmp_path / "work" / "models" / "deep")
    assert not trust.is_trusted(tmp_path / "work-not") and not trust.is_trusted(tmp_path)


def test_another_window_reads_the_answer(trust: Trust, tmp_path: Path) -> None:
    trust.add(tmp_path / "work")
    assert Trust(trust.path).is_trusted(tmp_path / "work")
    trust.remove(tmp_path / "work")
    assert not Trust(trust.path).is_trusted(tmp_path / "work")


def test_a_link_inside_a_trusted_folder_to_code_elsewhere_is_not_trusted(
    trust: Trust, tmp_path: Path
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "work" / "link").symlink_to(tmp_path / "elsewhere")
    trust.add(tmp_path / "work")
    assert not trust.is_trusted(tmp_path / "work" / "link")


def test_a_damaged_file_trusts_nothing(trust: Trust, tmp_path: Path) -> None:
    trust.add(tmp_path)
    trust.path.write_text("folders = [")
    assert not trust.is_trusted(tmp_path)


def test_a_run_naming_a_trusted_folder_is_not_trusted(trust: Trust, tmp_path: Path) -> None:
    work, run = tmp_path / "work", tmp_path / "theirs" / "run"
    trust.add(work)
    model = from_dict({"model": {"use": "os:system", "args": {"command": "ls"}}}, folder=work)
    script = ScriptConfig(name="a", script=ScriptTable(run="a.py", folder=str(work), python="/tmp/python"))
    for config in (model, script):
        assert trust.untrusted_folders_of_run(run, config) == [run]
        record_start_consent(config)
        assert trust.untrusted_folders_of_run(run, config) == [], "the person started it"
    assert trust.untrusted_folders_of_run(run, from_dict({"model": {"use": "mlp"}}, folder=tmp_path)) == []
    trust.remove(work)
    assert trust.untrusted_folders_of_run(run, model) == [work]
