"""Colours, fonts, icons and the style sheet. Read colors.py first, then theme.py."""

from rankdeck_app.theme.icons import draw_icon
from rankdeck_app.theme.qss import set_style_properties
from rankdeck_app.theme.theme import BUILT_IN_THEMES, SYSTEM_THEME, Theme, theme_label
from rankdeck_app.theme.vscode import ThemeError

__all__ = [
    "BUILT_IN_THEMES",
    "SYSTEM_THEME",
    "Theme",
    "ThemeError",
    "draw_icon",
    "set_style_properties",
    "theme_label",
]
