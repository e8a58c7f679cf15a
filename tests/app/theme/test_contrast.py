"""Whoever sees little, or few colours, can read the app: contrast by WCAG 2.2 over every pair of text and
ground that is used, and distances between what must be told apart under three kinds of colour blindness.
"""

from __future__ import annotations

import itertools
import math

import pytest

from rankdeck_app.theme import BUILT_IN_THEMES
from rankdeck_app.theme.colors import COLORS
from rankdeck_app.theme.qss import style_sheet
from rankdeck_app.theme.vscode import HIGH_CONTRAST_DARK, HIGH_CONTRAST_LIGHT, channels
from rankdeck_app.views.plan.row_delegate import VERDICT_ICONS
from rankdeck_app.widgets.run_list import OUTCOME_STYLES

SHARED_TEXT_COLORS = (
    "foreground descriptionForeground errorForeground textLink.foreground rankdeck.leadText rankdeck.ok"
    " editorError.foreground editorWarning.foreground editorInfo.foreground"
)
TEXT_PAIRS: dict[str, str] = {
    "editor.background": f"{SHARED_TEXT_COLORS} editorLineNumber.foreground breadcrumb.foreground"
    " rankdeck.number rankdeck.axis",
    "editor.lineHighlightBackground": "foreground editorLineNumber.foreground",
    "editor.findMatchHighlightBackground": "foreground",
    "rankdeck.card.background": f"{SHARED_TEXT_COLORS} rankdeck.axis",
    "sideBar.background": f"{SHARED_TEXT_COLORS} sideBar.foreground sideBarSectionHeader.foreground",
    "panel.background": f"{SHARED_TEXT_COLORS} panelTitle.activeForeground panelTitle.inactiveForeground",
    "editorWidget.background": "foreground descriptionForeground",
    "editorHoverWidget.background": "editorHoverWidget.foreground",
    "titleBar.activeBackground": "titleBar.activeForeground",
    "menubar.selectionBackground": "titleBar.activeForeground",
    "commandCenter.background": "commandCenter.foreground",
    "commandCenter.activeBackground": "commandCenter.foreground",
    "menu.background": "menu.foreground",
    "menu.selectionBackground": "menu.selectionForeground",
    "activityBar.background": "activityBar.foreground activityBar.inactiveForeground",
    "activityBarBadge.background": "activityBarBadge.foreground",
    "badge.background": "badge.foreground",
    "tab.activeBackground": "tab.activeForeground",
    "tab.inactiveBackground": "tab.inactiveForeground",
    "tab.hoverBackground": "tab.inactiveForeground",
    "statusBar.background": "statusBar.foreground errorForeground",
    "statusBarItem.hoverBackground": "statusBar.foreground",
    "errorForeground": "panel.background",
    "button.background": "button.foreground",
    "button.hoverBackground": "button.foreground",
    "button.secondaryBackground": "button.secondaryForeground",
    "button.secondaryHoverBackground": "button.secondaryForeground foreground",
    "input.background": "input.foreground input.placeholderForeground",
    "dropdown.background": "dropdown.foreground",
    "dropdown.listBackground": "dropdown.foreground",
    "selection.background": "foreground",
    "list.hoverBackground": "foreground descriptionForeground",
    "list.activeSelectionBackground": "list.activeSelectionForeground list.highlightForeground",
    "list.inactiveSelectionBackground": "list.activeSelectionForeground foreground",
    "quickInput.background": "quickInput.foreground descriptionForeground list.highlightForeground",
}
BACKDROPS: dict[str, str] = {
    "menubar.selectionBackground": "titleBar.activeBackground",
    "commandCenter.background": "titleBar.activeBackground",
    "commandCenter.activeBackground": "titleBar.activeBackground",
    "statusBarItem.hoverBackground": "statusBar.background",
}
"""What shines through a ground that is not opaque; the editor elsewhere."""
NOT_TEXT = {"disabledForeground", "icon.foreground"}
"""WCAG asks for no contrast of what is off; symbols are held to 3:1."""

Rgb = tuple[float, float, float]


def linear(value: Rgb) -> Rgb:
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in value)
    return red, green, blue


def rgb(colors: dict[str, str], key: str, below: str = "editor.background") -> Rgb:
    """As it is seen: alpha is blended with what lies below."""
    *foreground, alpha = (channel / 255 for channel in channels(colors[key]))
    if alpha == 1:
        return foreground[0], foreground[1], foreground[2]
    ground = rgb(colors, BACKDROPS.get(key, below))
    red, green, blue = (o * alpha + g * (1 - alpha) for o, g in zip(foreground, ground, strict=True))
    return red, green, blue


def contrast(color: Rgb, other: Rgb) -> float:
    """Source: WCAG 2.2, relative luminance and contrast ratio."""
    a, b = (
        sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear(value), strict=True)) + 0.05
        for value in (color, other)
    )
    return max(a, b) / min(a, b)


def low_contrast_pairs(colors: dict[str, str], min_ratio: float) -> list[str]:
    return [
        f"{ink} on {ground}: {ratio:.2f}"
        for ground, inks in TEXT_PAIRS.items()
        for ink in inks.split()
        if (ratio := contrast(rgb(colors, ink), rgb(colors, ground))) < min_ratio
    ]


def test_every_text_colour_is_in_a_pair() -> None:
    inks = {ink for inks in TEXT_PAIRS.values() for ink in inks.split()}
    assert {key for key in COLORS if key.endswith("oreground")} - inks == NOT_TEXT
    assert inks | TEXT_PAIRS.keys() <= COLORS.keys()


@pytest.mark.parametrize("name", BUILT_IN_THEMES)
def test_text_has_enough_contrast(name: str) -> None:
    table = BUILT_IN_THEMES[name]
    weak = low_contrast_pairs(table.colors, 7.0 if table.is_high_contrast else 4.5)
    assert not weak, "\n".join(weak)


def test_low_contrast_is_detected() -> None:
    pale = BUILT_IN_THEMES["Light Modern"].colors | {"descriptionForeground": "#9A9A9A"}
    assert any(
        line.startswith("descriptionForeground on editor.background")
        for line in low_contrast_pairs(pale, 4.5)
    )


@pytest.mark.parametrize("name", [name for name, table in BUILT_IN_THEMES.items() if table.is_high_contrast])
def test_high_contrast_lines_and_charts_have_enough_contrast(name: str) -> None:
    colors = BUILT_IN_THEMES[name].colors
    marks = [key for key in COLORS if key.endswith("order") or key.startswith("rankdeck.kind.")]
    marks += [
        "tab.activeBorderTop",
        "icon.foreground",
        "disabledForeground",
        "rankdeck.lead",
        "rankdeck.rest",
    ]
    marks += ["rankdeck.lossRaw", "rankdeck.capacity", "rankdeck.median", "scrollbarSlider.background"]
    marks.append("rankdeck.grid")
    ground = rgb(colors, "editor.background")
    weak = {key: ratio for key in marks if (ratio := contrast(rgb(colors, key), ground)) < 3}
    assert not weak


@pytest.mark.parametrize("table", [HIGH_CONTRAST_DARK, HIGH_CONTRAST_LIGHT])
def test_high_contrast_gives_every_id_one_colour(table: dict[str, str]) -> None:
    assert table.keys() == COLORS.keys()


def test_only_high_contrast_themes_outline_controls() -> None:
    lines = {name: "dashed" in _sheet(name) for name in BUILT_IN_THEMES}
    assert lines == {name: "High Contrast" in name for name in BUILT_IN_THEMES}


def _sheet(name: str) -> str:
    table = BUILT_IN_THEMES[name]
    return style_sheet(table.colors.__getitem__, high_contrast=table.is_high_contrast)


BLINDNESS: dict[str, tuple[Rgb, Rgb, Rgb]] = {
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""Of linear RGB. Source: Machado, Oliveira and Fernandes 2009, severity 1.0."""


def simulate_blindness(value: Rgb, kind: str) -> Rgb:
    light = linear(value)
    simulated = [sum(m * c for m, c in zip(row, light, strict=True)) for row in BLINDNESS[kind]]
    red, green, blue = (min(1.0, max(0.0, channel)) for channel in simulated)
    return red, green, blue


def lab(light: Rgb) -> Rgb:
    """CIELAB (D65) of linear RGB."""
    red, green, blue = light
    xyz = (
        (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.95047,
        0.2126 * red + 0.7152 * green + 0.0722 * blue,
        (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.08883,
    )
    x, y, z = (
        component ** (1 / 3) if component > 0.008856 else 7.787 * component + 16 / 116 for component in xyz
    )
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(color: Rgb, other: Rgb, kind: str) -> float:
    return math.dist(lab(simulate_blindness(color, kind)), lab(simulate_blindness(other, kind)))


DISTINCT_PAIRS = (
    ("rankdeck.lead", "rankdeck.rest"),
    ("rankdeck.lead", "rankdeck.median"),
    ("rankdeck.kind.gathered", "rankdeck.kind.parameters"),
    ("rankdeck.kind.gathered", "rankdeck.kind.gradients"),
    ("rankdeck.kind.gathered", "rankdeck.kind.activations"),
    ("rankdeck.heat.0", "rankdeck.heat.2"),
    ("rankdeck.heat.2", "rankdeck.heat.4"),
)
MIN_DISTANCE = 20.0
"""In CIELAB, where 2.3 is the least that is noticed side by side: told apart across a chart."""


@pytest.mark.parametrize(("name", "kind"), list(itertools.product(BUILT_IN_THEMES, BLINDNESS)))
def test_colour_blind_users_can_tell_the_lead_from_the_rest(name: str, kind: str) -> None:
    colors = BUILT_IN_THEMES[name].colors
    near = {
        pair: difference
        for pair in DISTINCT_PAIRS
        if (difference := distance(rgb(colors, pair[0]), rgb(colors, pair[1]), kind)) < MIN_DISTANCE
    }
    assert not near


def test_red_and_green_are_too_close() -> None:
    """The negative control: what others mark good and bad with is one colour to some."""
    good, bad = (0.25, 0.55, 0.2), (0.55, 0.42, 0.13)
    assert distance(good, bad, "deuteranopia") < MIN_DISTANCE < distance((0, 0, 0), (1, 1, 1), "deuteranopia")


def test_verdicts_and_outcomes_have_distinct_icons() -> None:
    verdicts = [icon for icon, _ in VERDICT_ICONS.values()]
    outcomes = [icon for icon, _, _ in OUTCOME_STYLES.values()]
    assert len(set(verdicts)) == len(verdicts) and len(set(outcomes)) == len(outcomes)


@pytest.mark.parametrize("name", BUILT_IN_THEMES)
def test_raw_losses_are_visible_on_a_card(name: str) -> None:
    colors = BUILT_IN_THEMES[name].colors
    assert contrast(rgb(colors, "rankdeck.lossRaw"), rgb(colors, "rankdeck.card.background")) >= 2
