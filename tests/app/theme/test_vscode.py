from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankdeck_app.theme.colors import COLORS, DARK, LIGHT, Mix
from rankdeck_app.theme.vscode import (
    BASE_COLORS,
    ThemeError,
    channels,
    load_vscode_theme,
    mix_colors,
    normalize_hex,
    parse_jsonc,
)

KINDS = (
    "parameters",
    "gradients",
    "optimizer",
    "buffers",
    "activations",
    "communication",
    "inputs",
    "temporary",
    "gathered",
)

SOLARIZED = """
// Solarized, shortened
{
  "name": "Solarized \\"Dark\\"", /* a name // with traps */
  "type": "dark",
  "colors": {
    "editor.background": "#002b36",
    "foreground": "#93a1a1",
    "focusBorder": "#2AA198EE", // alpha last
    "list.hoverBackground": "#0448",
    "tab.border": null,
  },
  "tokenColors": [ { "settings": { "foreground": "#93A1A1", }, }, ],
}
"""


def test_both_own_themes_have_real_colours() -> None:
    assert all(normalize_hex(value) == value for table in (DARK, LIGHT) for value in table.values())


def test_derived_colours_refer_to_known_ids_without_cycles() -> None:
    def depth(key: str, ancestors: tuple[str, ...] = ()) -> None:
        assert key in COLORS and key not in ancestors, (*ancestors, key)
        rule = COLORS[key].fallback
        for other in (rule.base, rule.over) if isinstance(rule, Mix) else filter(None, [rule]):
            depth(other, (*ancestors, key))

    for key in COLORS:
        depth(key)


def test_memory_kinds_have_colours_and_only_gathered_is_warm() -> None:
    for table in (DARK, LIGHT):
        for kind in KINDS:
            red, _, blue, _ = channels(table[f"rankdeck.kind.{kind}"])
            assert (red > blue) is (kind == "gathered"), kind


def test_json_with_comments_and_trailing_commas_is_read() -> None:
    text = '{"a": "x // y", /* , */ "b": [1, 2,], "c": "/* z */,}", }'
    assert parse_jsonc(text) == {"a": "x // y", "b": [1, 2], "c": "/* z */,}"}


@pytest.mark.parametrize(
    ("value", "normal"),
    [("#abc", "#AABBCC"), ("#abcd", "#AABBCCDD"), ("#0078d4", "#0078D4"), ("#0078d480", "#0078D480")],
)
def test_short_colours_are_expanded(value: str, normal: str) -> None:
    assert normalize_hex(value) == normal


@pytest.mark.parametrize("value", ["red", "#12", "#12345", "0078D4", ""])
def test_an_invalid_colour_is_refused(value: str) -> None:
    with pytest.raises(ValueError, match="not a colour"):
        normalize_hex(value)


def test_missing_colours_are_derived_from_the_themes_own(tmp_path: Path) -> None:
    path = tmp_path / "solarized.json"
    path.write_text(SOLARIZED)
    table = load_vscode_theme(path)
    assert (table.name, table.kind) == ('Solarized "Dark"', "dark")
    assert table.colors.keys() >= DARK.keys()
    assert table.colors["editor.background"] == table.colors["sideBar.background"] == "#002B36"
    assert channels(table.colors["focusBorder"]) == (0x2A, 0xA1, 0x98, 0xEE)
    assert table.colors["list.hoverBackground"] == "#00444488"
    assert table.colors["descriptionForeground"] == mix_colors("#002B36", "#93A1A1", 0.7)
    assert table.colors["rankdeck.lead"] == DARK["rankdeck.lead"]


def test_an_included_theme_is_overridden_and_sets_the_kind(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "light.json").write_text(
        json.dumps({"type": "light", "colors": {"editor.background": "#FFFFF0", "foreground": "#111111"}})
    )
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"include": "./base/light.json", "colors": {"foreground": "#222222"}}))
    table = load_vscode_theme(path)
    assert (table.name, table.kind) == ("mine", "light")
    assert table.colors["editor.background"] == "#FFFFF0"
    assert table.colors["foreground"] == "#222222"


@pytest.mark.parametrize(
    ("type_name", "kind"),
    [
        ("dark", "dark"),
        ("vs", "light"),
        ("hc", "high contrast dark"),
        ("hcDark", "high contrast dark"),
        ("hc-black", "high contrast dark"),
        ("hcLight", "high contrast light"),
        ("hc-light", "high contrast light"),
    ],
)
def test_missing_colours_come_from_the_base_theme_of_the_kind(
    tmp_path: Path, type_name: str, kind: str
) -> None:
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"type": type_name, "colors": {"foreground": "#EFEFEF"}}))
    table = load_vscode_theme(path)
    assert table.kind == kind and table.is_light is kind.endswith("light")
    assert table.is_high_contrast is kind.startswith("high")
    assert table.colors["editor.background"] == BASE_COLORS[kind]["editor.background"]
    if table.is_high_contrast:
        assert table.colors["disabledForeground"] == BASE_COLORS[kind]["disabledForeground"], "no mix"


def test_without_a_type_the_background_decides(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"colors": {"editor.background": "#fafafa"}}')
    assert load_vscode_theme(path).kind == "light"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"colors": {"foreground": "bright"}}', "\"foreground\": 'bright' is not a colour"),
        ('{"colors": {', "line 1"),
        ("[1]", "expected a JSON object"),
        ('{"colors": []}', "expected a JSON object"),
        ('{"include": "t.json"}', "includes itself"),
        ('{"include": "gone.json"}', "cannot be read"),
    ],
)
def test_an_invalid_theme_names_its_file_and_the_error(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "t.json"
    path.write_text(text)
    with pytest.raises(ThemeError, match=r"\.json") as caught:
        load_vscode_theme(path)
    assert message in str(caught.value)


HOSTILE_FILES = {
    "a number of 10,000 digits": '{"colors": {"foreground": %s}}' % ("9" * 10_000),
    "deep nesting": '{"colors": {"a": ' + "[" * 100_000 + "]" * 100_000 + "}}",
    "a NUL in the include": r'{"include": "a\u0000b.json"}',
    "a NUL in the file": '{"colors": {"a": "\0"}}',
    "comments without an end": "/*" * 200_000,
    "strings without an end": '{"' + r"\"" * 200_000,
    "a long value": '{"colors": {"foreground": "%s"}}' % ("x" * 100_000),
    "a device": '{"include": "/dev/zero"}',
    "a pipe": '{"include": "pipe"}',
    "a folder": '{"include": "."}',
    "links in a circle": '{"include": "circle"}',
    "too large": " " * (2 << 20),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_hostile_theme_files_are_refused_without_blocking(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    theme = tmp_path / "theme.json"
    theme.write_text(HOSTILE_FILES[name])
    with pytest.raises(ThemeError) as caught:
        load_vscode_theme(theme)
    assert len(str(caught.value)) < 1_000 and "\0" not in str(caught.value)


def test_the_include_depth_and_the_name_are_checked(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number}.json").write_text(json.dumps({"name": [1], "include": f"{number + 1}.json"}))
    (tmp_path / "40.json").write_text("{}")
    assert load_vscode_theme(tmp_path / "30.json").name == "30"
    with pytest.raises(ThemeError, match="levels deep"):
        load_vscode_theme(tmp_path / "0.json")
