"""Colours, fonts, icons and the style sheet. Read colors.py first, then theme.py."""

from rankdeck_app.theme.icons import draw_icon
from rankdeck_app.theme.qss import set_look
from rankdeck_app.theme.theme import BUILT_IN, SYSTEM, Theme, theme_in_words
from rankdeck_app.theme.vscode import ThemeError

__all__ = ["BUILT_IN", "SYSTEM", "Theme", "ThemeError", "draw_icon", "set_look", "theme_in_words"]
