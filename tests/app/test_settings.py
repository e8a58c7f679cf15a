from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from rankdeck_app.language import pseudolocalize, translate
from rankdeck_app.settings import SETTINGS, Setting, Settings
from rankdeck_app.theme import BUILT_IN_THEMES, SYSTEM_THEME


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "settings.toml"


def test_without_a_file_every_option_has_its_default(path: Path) -> None:
    settings = Settings(path)
    assert all(settings.value(option.key) == option.default for option in SETTINGS)
    assert not path.exists()


def test_every_default_is_valid() -> None:
    assert [option.problem_with(option.default) for option in SETTINGS] == [None] * len(SETTINGS)


def test_a_change_is_saved_and_signalled(path: Path) -> None:
    settings, changes = Settings(path), list[str]()
    settings.changed.connect(changes.append)
    settings.set("theme.name", "Light Modern")
    settings.set("window.frame_rate", 60)
    settings.set("window.frame_rate", 60)
    assert changes == ["theme.name", "window.frame_rate"]
    assert Settings(path).get("theme.name", str) == "Light Modern"
    assert Settings(path).get("window.frame_rate", int) == 60


def test_a_reset_removes_the_line_from_the_file(path: Path) -> None:
    settings = Settings(path)
    settings.set("theme.name", "Light Modern")
    settings.set("theme.name", settings.definitions["theme.name"].default)
    assert tomllib.loads(path.read_text()) == {"theme": {}}


def test_comments_and_unknown_keys_survive_a_change(path: Path) -> None:
    path.write_text('# mine\n[theme]\nname = "Light Modern" # bright\n[other]\nkey = 1\n')
    Settings(path).set("window.restore_tabs", False)
    text = path.read_text()
    assert "# mine" in text and "# bright" in text and "key = 1" in text
    assert "restore_tabs = false" in text


def test_a_value_of_the_wrong_type_is_reported_and_the_default_used(path: Path) -> None:
    path.write_text('[window]\nframe_rate = "fast"\nrestore_tabs = false\n[theme]\nname = 3\n')
    settings = Settings(path)
    assert settings.get("window.frame_rate", int) == 30
    assert settings.get("window.restore_tabs", bool) is False
    assert len(settings.problems) == 2
    assert settings.problems[0] == (
        f"{path}, line 2: window.frame_rate must be a whole number, not 'fast'. The default 30 is used."
    )
    assert "line 5: theme.name must be text" in settings.problems[1]


@pytest.mark.parametrize("text", ['theme = "Dark"\nmine = 1\n', "mine = 1\n[[theme]]\nname = 'x'\n"])
def test_a_non_table_is_replaced_by_a_table(path: Path, text: str) -> None:
    path.write_text(text)
    Settings(path).set("theme.name", "Light Modern")
    assert tomllib.loads(path.read_text()) == {"mine": 1, "theme": {"name": "Light Modern"}}


def test_nan_is_out_of_bounds(path: Path) -> None:
    path.write_text("[window]\nzoom = nan\n[plan]\ntimeout_s = inf\n")
    settings = Settings(path)
    assert [settings.value("window.zoom"), settings.value("plan.timeout_s")] == [1.0, 180.0]
    assert "must be between 0.5 and 3, not nan" in settings.problems[0] and len(settings.problems) == 2


def test_an_invalid_file_is_reported_and_backed_up_at_the_next_change(path: Path) -> None:
    path.write_text("theme = [")
    settings = Settings(path)
    assert len(settings.problems) == 1
    settings.set("window.restore_tabs", False)
    assert path.with_name("settings.toml.broken").read_text() == "theme = ["
    assert not Settings(path).problems


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (True, "whole number"),
        (4, "between 5 and 60"),
        (61, "between"),
        ("x", "whole number"),
        (2.5, "whole number"),
    ],
)
def test_a_refused_value_names_the_allowed_values(path: Path, value: object, message: str) -> None:
    settings = Settings(path)
    with pytest.raises(ValueError, match=message):
        settings.set("window.frame_rate", value)  # type: ignore[arg-type]
    assert settings.get("window.frame_rate", int) == 30


def test_a_refusal_lists_the_choices(path: Path) -> None:
    settings = Settings(path, (Setting("a.b", "x", "A choice.", choices=("x", "y")),))
    with pytest.raises(ValueError, match="x or y"):
        settings.set("a.b", "z")


@pytest.mark.parametrize(
    ("name", "is_allowed"), [("System", True), ("~/mine.json", True), ("Solarised", False)]
)
def test_a_theme_is_a_builtin_name_or_a_file(path: Path, name: str, is_allowed: bool) -> None:
    problem = Settings(path).definitions["theme.name"].problem_with(name)
    assert (problem is None) is is_allowed
    assert is_allowed or (problem or "").endswith("System or the path of a .json file, not 'Solarised'.")


@pytest.mark.usefixtures("made_up")
def test_problems_of_the_file_are_translated_after_loading(path: Path) -> None:
    path.write_text("[window]\nzoom = 9\n")
    (problem,) = Settings(path).problems
    location, default = f"{path}, line 2: ", " The default 1.0 is used."
    assert problem == f"{location}window.zoom must be between 0.5 and 3, not 9.{default}"
    middle = pseudolocalize("{key} must be between {low:g} and {high:g}, not {value:g}.")
    middle = middle.format(key="window.zoom", low=0.5, high=3, value=9)
    assert translate(problem) == f"{path}, {pseudolocalize('line')} 2: {middle}{pseudolocalize(default)}"


def test_all_themes_are_choices_and_all_numbers_have_bounds() -> None:
    rows = {option.key: option for option in SETTINGS}
    assert rows["theme.name"].choices == (*BUILT_IN_THEMES, SYSTEM_THEME)
    numbers = [option for option in SETTINGS if option.kind in (int, float)]
    assert numbers and all(option.minimum is not None and option.maximum is not None for option in numbers)


def test_an_integer_is_valid_for_a_float_setting(path: Path) -> None:
    path.write_text("[notifications]\nseconds = 5\n")
    assert Settings(path).get("notifications.seconds", float) == 5.0
