"""Reads VS Code colour themes: JSON with comments, trailing commas and `include`. Colours are #RGB, #RGBA,
#RRGGBB or #RRGGBBAA; missing colours are derived from the fallbacks in colors.COLORS or, failing that, copied
from our own theme of the same kind."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rankdeck.base.files import read_bytes
from rankdeck.base.home import expand_home
from rankdeck.base.parsing import parse_json
from rankdeck.base.phrases import tr_noop
from rankdeck_app.language import tr
from rankdeck_app.theme.colors import COLORS, DARK, LIGHT, Mix

# The two high-contrast themes: few colours, each with a role, and an outline around every control.  Text has
# a contrast of at least 7:1, lines and charts 3:1. A selection is outlined too, never only filled: if
# `contrastBorder` is not transparent, qss.py adds its high-contrast rules, and painted rows draw
# `contrastActiveBorder` around the selection.


class HighContrastColor(NamedTuple):
    """A pair of colours, for the dark and the light high-contrast theme, and the ids that use this pair."""

    dark: str
    light: str
    ids: str


_HIGH_CONTRAST_COLORS = (
    HighContrastColor(
        "#000000",
        "#FFFFFF",
        "editor.background sideBar.background titleBar.activeBackground activityBar.background"
        " panel.background statusBar.background menu.background editorGroupHeader.tabsBackground"
        " editorWidget.background editorHoverWidget.background tab.activeBackground tab.inactiveBackground"
        " button.secondaryBackground checkbox.background input.background dropdown.background"
        " dropdown.listBackground quickInput.background commandCenter.background rankdeck.card.background"
        " badge.foreground activityBarBadge.foreground button.foreground",
    ),
    HighContrastColor(
        "#FFFFFF",
        "#1F1F1F",
        "foreground icon.foreground titleBar.activeForeground commandCenter.foreground menu.foreground"
        " menu.selectionForeground activityBar.foreground activityBar.inactiveForeground sideBar.foreground"
        " sideBarSectionHeader.foreground editorHoverWidget.foreground tab.activeForeground"
        " tab.inactiveForeground breadcrumb.foreground panelTitle.activeForeground"
        " panelTitle.inactiveForeground statusBar.foreground button.secondaryForeground input.foreground"
        " dropdown.foreground list.activeSelectionForeground quickInput.foreground badge.background"
        " rankdeck.median",
    ),
    HighContrastColor(
        "#D6D6D6",
        "#3B3B3B",
        "descriptionForeground editorLineNumber.foreground input.placeholderForeground rankdeck.axis",
    ),
    HighContrastColor("#8C8C8C", "#767676", "disabledForeground scrollbarSlider.background rankdeck.grid"),
    HighContrastColor(
        "#6FC3DF",
        "#0F4A85",
        "contrastBorder widget.border titleBar.border commandCenter.border menu.border"
        " menu.separatorBackground activityBar.border sideBar.border editorGroupHeader.tabsBorder"
        " editorHoverWidget.border tab.unfocusedActiveBorderTop tab.border panel.border statusBar.border"
        " input.border dropdown.border rankdeck.card.border scrollbarSlider.hoverBackground",
    ),
    HighContrastColor(
        "#F38518",
        "#006BBD",
        "contrastActiveBorder focusBorder inputOption.activeBorder activityBar.activeBorder"
        " tab.activeBorderTop panelTitle.activeBorder",
    ),
    HighContrastColor("#6FD0FF", "#0F4A85", "button.background"),
    HighContrastColor("#A6E1FF", "#083763", "button.hoverBackground activityBarBadge.background"),
    HighContrastColor(
        "#0E2E47",
        "#D5E7F8",
        "list.activeSelectionBackground menu.selectionBackground selection.background",
    ),
    HighContrastColor(
        "#1F2A33",
        "#E6EEF6",
        "list.inactiveSelectionBackground list.hoverBackground menubar.selectionBackground"
        " toolbar.hoverBackground statusBarItem.hoverBackground commandCenter.activeBackground"
        " tab.hoverBackground button.secondaryHoverBackground editor.lineHighlightBackground",
    ),
    HighContrastColor("#453300", "#FFEFC2", "editor.findMatchHighlightBackground"),
    HighContrastColor("#F385184D", "#006BBD3D", "editorGroup.dropBackground"),
    HighContrastColor("#00000000", "#00000000", "widget.shadow"),
    HighContrastColor(
        "#7CC8FF", "#00488C", "textLink.foreground list.highlightForeground editorInfo.foreground"
    ),
    HighContrastColor(
        "#FF8F87",
        "#A1160B",
        "errorForeground editorError.foreground inputValidation.errorBorder rankdeck.capacity",
    ),
    HighContrastColor("#FFB84D", "#7A4300", "editorWarning.foreground rankdeck.leadText"),
    HighContrastColor("#FFB84D", "#B86A00", "rankdeck.lead rankdeck.kind.gathered"),
    HighContrastColor("#FFB84D40", "#B86A0033", "rankdeck.leadFill"),
    HighContrastColor("#6FC3FF", "#0A5A99", "rankdeck.rest rankdeck.loss"),
    HighContrastColor("#6FC3FF59", "#0A5A9940", "rankdeck.restFill"),
    HighContrastColor("#4F7FA0", "#6C97B8", "rankdeck.lossRaw"),
    HighContrastColor("#5FD970", "#0B5420", "rankdeck.ok"),
    HighContrastColor("#CDE8BE", "#06553A", "rankdeck.number"),
    HighContrastColor("#1C1C1C", "#EBEBEB", "rankdeck.track"),
    HighContrastColor("#10151C", "#F1F5FB", "rankdeck.heat.0"),
    HighContrastColor("#1F3B57", "#B9D4EE", "rankdeck.heat.1"),
    HighContrastColor("#2E70A6", "#5FA3CF", "rankdeck.heat.2"),
    HighContrastColor("#63ABE0", "#1F6BA6", "rankdeck.heat.3"),
    HighContrastColor("#D3EBFF", "#062650", "rankdeck.heat.4"),
    HighContrastColor("#4C74A3", "#16385E", "rankdeck.kind.parameters"),
    HighContrastColor("#6694C8", "#2F5F95", "rankdeck.kind.gradients"),
    HighContrastColor("#8BB6E4", "#4E80B5", "rankdeck.kind.optimizer"),
    HighContrastColor("#6F88A8", "#46607F", "rankdeck.kind.buffers"),
    HighContrastColor("#BCD9F7", "#6792BF", "rankdeck.kind.activations"),
    HighContrastColor("#9ACBDF", "#3F7F99", "rankdeck.kind.communication"),
    HighContrastColor("#DDEBFA", "#7792AE", "rankdeck.kind.inputs"),
    HighContrastColor("#A3B1C2", "#6B7E94", "rankdeck.kind.temporary"),
    HighContrastColor("#7C8896", "#8A929C", "rankdeck.kind.unattributed"),
)

HIGH_CONTRAST_DARK: dict[str, str] = {
    key: role.dark for role in _HIGH_CONTRAST_COLORS for key in role.ids.split()
}
HIGH_CONTRAST_LIGHT: dict[str, str] = {
    key: role.light for role in _HIGH_CONTRAST_COLORS for key in role.ids.split()
}


BASE_COLORS: dict[str, dict[str, str]] = {
    tr_noop("dark"): DARK,
    tr_noop("light"): LIGHT,
    tr_noop("high contrast dark"): HIGH_CONTRAST_DARK,
    tr_noop("high contrast light"): HIGH_CONTRAST_LIGHT,
}
"""The built-in colours by theme kind."""
# Values of "type" in VS Code themes; older themes use their extension's "uiTheme" values.
_KIND_BY_TYPE = {
    "light": "light",
    "vs": "light",
    "hc": "high contrast dark",
    "hcdark": "high contrast dark",
    "hc-dark": "high contrast dark",
    "hc-black": "high contrast dark",
    "hclight": "high contrast light",
    "hc-light": "high contrast light",
}

# An unterminated string or comment matches to the end of the text, so no text is scanned twice.
_COMMENT = re.compile(r'("(?:[^"\\]|\\.)*"?)|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_TRAILING_COMMA = re.compile(r'("(?:[^"\\]|\\.)*"?)|,(?=\s*[}\]])', re.DOTALL)
_HEX = re.compile(r"#(?:[0-9a-fA-F]{3,4}|[0-9a-fA-F]{6}|[0-9a-fA-F]{8})")


_MAX_FILE_BYTES = 1 << 20
_MAX_INCLUDES = 16
_MAX_SHOWN_LENGTH = 60
"""Number of characters after which a theme's name, or an invalid value in a message, is cut off."""


class ThemeError(ValueError):
    """Raised if a theme file cannot be used. The message names the file, the problem and the fix."""


@dataclass(frozen=True)
class ColorTable:
    """A complete theme: a value for every id that the app uses. `kind` is a key of BASE_COLORS."""

    name: str
    kind: str
    colors: dict[str, str]

    @property
    def is_light(self) -> bool:
        return self.kind.endswith("light")

    @property
    def is_high_contrast(self) -> bool:
        """Whether the theme outlines controls, as high-contrast themes do."""
        return channels(self.colors["contrastBorder"])[3] > 0


def parse_jsonc(text: str) -> Any:
    """Parse JSON as VS Code writes it: with // and /* */ comments and trailing commas.

    Raises:
        ValueError: the text is not JSON; a syntax error is a json.JSONDecodeError, which names the line.
    """
    # Strings are matched too and left unchanged: the // in a URL does not start a comment.
    bare = _COMMENT.sub(lambda match: match[1] or " ", text)
    return parse_json(_TRAILING_COMMA.sub(lambda match: match[1] or "", bare))


def normalize_hex(value: str) -> str:
    """Expand '#RGB' and '#RGBA', and convert the digits to upper case.

    Raises:
        ValueError: the value is not a colour.
    """
    if not _HEX.fullmatch(value):
        raise ValueError(f"{value!r} is not a colour")
    digits = value[1:]
    if len(digits) <= 4:
        digits = "".join(2 * digit for digit in digits)
    return "#" + digits.upper()


def channels(value: str) -> tuple[int, int, int, int]:
    """Return red, green, blue and alpha of a normalized hex value."""
    red, green, blue, alpha = bytes.fromhex(value[1:].ljust(8, "F"))
    return red, green, blue, alpha


def mix_colors(base: str, over: str, share: float) -> str:
    """Blend `share` of `over` onto `base`, ignoring alpha."""
    pairs = zip(channels(base)[:3], channels(over)[:3], strict=True)
    return "#" + "".join(f"{round(b + (o - b) * share):02X}" for b, o in pairs)


def luminance(value: str) -> float:
    red, green, blue, _ = channels(value)
    return (0.2126 * red + 0.7152 * green + 0.0722 * blue) / 255


def load_vscode_theme(path: Path) -> ColorTable:
    """Load a colour theme file as a complete table.

    Raises:
        ThemeError: the file is unreadable, is not a JSON object, includes itself or has an invalid colour.
    """
    raw = _read_theme(path, ())
    colors: dict[str, str] = {}
    for key, value in raw.get("colors", {}).items():
        if value is None:
            continue  # as in VS Code, null removes an included value
        try:
            colors[key] = normalize_hex(value)
        except (TypeError, ValueError):
            message = tr(
                '{path}: "{key}": {value!r} is not a colour. Write it as "#RRGGBB" or "#RRGGBBAA".',
                path=path,
                key=key,
                value=value if len(str(value)) <= _MAX_SHOWN_LENGTH else f"{str(value)[:_MAX_SHOWN_LENGTH]}…",
            )
            raise ThemeError(message) from None
    kind = _theme_kind(raw, colors)
    declared_name = raw.get("name")
    name = (
        declared_name[:_MAX_SHOWN_LENGTH] if declared_name and isinstance(declared_name, str) else path.stem
    )
    return ColorTable(name, kind, _fill_missing(colors, kind))


def _read_theme(path: Path, including: tuple[Path, ...]) -> dict[str, Any]:
    try:
        # Resolved, so that an include through a link is recognised as the same file.
        path = expand_home(path).resolve()
        if path in including:
            raise ThemeError(tr("{path}: the theme includes itself. Remove the include.", path=path))
        if len(including) > _MAX_INCLUDES:
            message = tr(
                "{path}: includes are nested more than {n} levels deep. Remove some includes.",
                path=path,
                n=_MAX_INCLUDES,
            )
            raise ThemeError(message)
        # Editors on Windows may write a byte order mark, which "utf-8-sig" drops.
        raw = parse_jsonc(read_bytes(path, _MAX_FILE_BYTES).decode("utf-8-sig"))
    # A ThemeError is a ValueError, so the last clause would wrap its message a second time.
    except ThemeError:
        raise
    except json.JSONDecodeError as error:
        message = tr(
            "{path}, line {line}: {error}. A colour theme is a JSON object.",
            path=path,
            line=error.lineno,
            error=error.msg,
        )
        raise ThemeError(message) from error
    except (OSError, RuntimeError, ValueError) as error:  # a path with a NUL, circular links
        message = tr(
            "{path} cannot be read ({error}). Choose a VS Code colour theme file.",
            path=str(path).replace("\0", "?"),
            error=error,
        )
        raise ThemeError(message) from error
    if not isinstance(raw, dict) or not isinstance(raw.get("colors", {}), dict):
        message = tr(
            '{path}: expected a JSON object with "colors". Choose a VS Code colour theme file.', path=path
        )
        raise ThemeError(message)
    include = raw.get("include")
    if isinstance(include, str):
        below = _read_theme(path.parent / include, (*including, path))
        # The including file's own colours take precedence, as in VS Code.
        raw["colors"] = {**below.get("colors", {}), **raw.get("colors", {})}
        raw.setdefault("type", below.get("type"))
    return raw


def _theme_kind(raw: dict[str, Any], colors: dict[str, str]) -> str:
    kind = raw.get("type")
    if isinstance(kind, str):
        return _KIND_BY_TYPE.get(kind.lower(), "dark")
    # A theme file need not name its type, because VS Code reads that from the extension's manifest.
    return "light" if luminance(colors.get("editor.background", "#1F1F1F")) > 0.5 else "dark"


def _fill_missing(colors: dict[str, str], kind: str) -> dict[str, str]:
    """Fill in missing colours. In a high-contrast theme, colours that would be blended from others are copied
    from our own theme instead, because blending reduces contrast."""
    base, full = BASE_COLORS[kind], dict(colors)
    mixes = kind in ("dark", "light")

    def value_of(key: str) -> str:
        if key not in full:
            rule = COLORS[key].fallback
            if isinstance(rule, Mix) and not mixes:
                full[key] = base[key]
            elif isinstance(rule, Mix):
                full[key] = mix_colors(value_of(rule.base), value_of(rule.over), rule.share)
            else:
                full[key] = value_of(rule) if rule else base[key]
        return full[key]

    for key in base:
        value_of(key)
    return full
