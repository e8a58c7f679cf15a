"""The theme at work: colours by VS Code id, fonts, icons, and the look of plain Qt widgets.

Fusion draws, a QPalette gives it most colours, one small style sheet (qss.py) the rest. Widgets that paint
themselves ask `color` and repaint on `changed`. Changing a theme repolishes every widget (hundreds of ms at
700 widgets), so nothing else ever sets a style sheet: use the object names and properties that qss.py lists.
"""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QColor, QFont, QGuiApplication, QIcon, QPalette
from PySide6.QtWidgets import QApplication

from rankdeck.base.phrases import tr_noop
from rankdeck_app.language import tr
from rankdeck_app.theme.icons import CODEPOINTS, CodiconEngine
from rankdeck_app.theme.qss import MONO_FAMILIES, style_sheet
from rankdeck_app.theme.vscode import BASE_COLORS, ColorTable, ThemeError, channels, load_vscode_theme

BUILT_IN_THEMES: dict[str, ColorTable] = {
    name: ColorTable(name, kind, BASE_COLORS[kind])
    for name, kind in (
        (tr_noop("Dark Modern"), "dark"),
        (tr_noop("Light Modern"), "light"),
        (tr_noop("Dark High Contrast"), "high contrast dark"),
        (tr_noop("Light High Contrast"), "high contrast light"),
    )
}
SYSTEM_THEME = tr_noop("System")
"""The name that stands for whichever of ours is like what the desktop prefers."""
UI_FAMILIES = ["Segoe UI", "Ubuntu", "Noto Sans", "DejaVu Sans", "sans-serif"]


def prefer_families(ui: str, mono: str) -> None:
    """Typefaces that come before ours, for all that is made from now on; those that are not there are passed
    over.
    """
    for name, families in ((ui, UI_FAMILIES), (mono, MONO_FAMILIES)):
        if name.strip():
            families.insert(0, name.strip())


def theme_label(name: str) -> str:
    """A theme's name as it is shown: ours in the window's language."""
    return tr(name) if name in (*BUILT_IN_THEMES, SYSTEM_THEME) else name


def system_theme() -> str:
    """The one of ours that is like what the desktop prefers; dark where it says nothing."""
    hints = QGuiApplication.styleHints()
    wants_contrast = hints.accessibility().contrastPreference() == Qt.ContrastPreference.HighContrast
    shade = "Light" if hints.colorScheme() == Qt.ColorScheme.Light else "Dark"
    return f"{shade} {'High Contrast' if wants_contrast else 'Modern'}"


_PALETTE_COLORS: dict[QPalette.ColorRole, str] = {
    QPalette.ColorRole.Window: "editor.background",
    QPalette.ColorRole.WindowText: "foreground",
    QPalette.ColorRole.Base: "editor.background",
    QPalette.ColorRole.AlternateBase: "sideBar.background",
    QPalette.ColorRole.Text: "foreground",
    QPalette.ColorRole.Button: "button.secondaryBackground",
    QPalette.ColorRole.ButtonText: "button.secondaryForeground",
    QPalette.ColorRole.Highlight: "list.activeSelectionBackground",
    QPalette.ColorRole.HighlightedText: "list.activeSelectionForeground",
    QPalette.ColorRole.Accent: "focusBorder",
    QPalette.ColorRole.Link: "textLink.foreground",
    QPalette.ColorRole.ToolTipBase: "editorHoverWidget.background",
    QPalette.ColorRole.ToolTipText: "editorHoverWidget.foreground",
    QPalette.ColorRole.PlaceholderText: "input.placeholderForeground",
}


class Theme(QObject):
    """`changed` is emitted after colours, palette and style sheet are new."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._table = BUILT_IN_THEMES["Dark Modern"]
        self._cache: dict[str, QColor] = {}
        self._is_compact = False

    @property
    def name(self) -> str:
        return self._table.name

    @property
    def kind(self) -> str:
        """One of vscode.BASES: 'dark', 'high contrast light' ..."""
        return self._table.kind

    @property
    def is_light(self) -> bool:
        return self._table.is_light

    def load(self, name: str) -> None:
        """Switch to a built-in theme, to the one that is like the desktop (SYSTEM), or to the VS Code colour
        theme at a path.

        Raises:
            ThemeError: there is no such theme, or its file cannot be used; the theme stays as it was.
        """
        table = BUILT_IN_THEMES.get(system_theme() if name == SYSTEM_THEME else name)
        if table is None:
            if not name.endswith((".json", ".jsonc")):
                known = ", ".join([*BUILT_IN_THEMES, SYSTEM_THEME])
                raise ThemeError(
                    tr(
                        "There is no theme {name!r}. Use {known}, or the path of a JSON theme.",
                        name=name,
                        known=known,
                    )
                )
            table = load_vscode_theme(Path(name))
        if table is self._table:
            return
        self._table = table
        self._cache.clear()
        if QApplication.instance() is not None:
            self.apply()
        self.changed.emit()

    def set_compact(self, is_compact: bool) -> None:
        """Lower fields, buttons, rows and menus, or those that are easy to hit."""
        if is_compact == self._is_compact:
            return
        self._is_compact = is_compact
        self.apply()
        self.changed.emit()

    def apply(self) -> None:
        """Give the application Fusion, palette, font and style sheet of this theme."""
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        if not app.property("isFusion"):  # a style sheet hides the style's name
            app.setStyle("Fusion")
            app.setProperty("isFusion", True)
        app.setPalette(self.palette())
        app.setFont(self.font())
        look = {"high_contrast": self._table.is_high_contrast, "compact": self._is_compact}
        app.setStyleSheet(style_sheet(self.hex, **look))

    def palette(self) -> QPalette:
        palette = QPalette()
        for role, key in _PALETTE_COLORS.items():
            palette.setColor(role, self.color(key))
        disabled = self.color("disabledForeground")
        for role in (QPalette.ColorRole.WindowText, QPalette.ColorRole.Text, QPalette.ColorRole.ButtonText):
            palette.setColor(QPalette.ColorGroup.Disabled, role, disabled)
        return palette

    def color(self, key: str) -> QColor:
        """The colour of an id of colors.py. The object is shared: copy it before changing it."""
        color = self._cache.get(key)
        if color is None:
            color = self._cache[key] = QColor(*channels(self._table.colors[key]))
        return color

    def hex(self, key: str) -> str:
        """The colour as style sheets and rich text take it; alpha included where there is any."""
        red, green, blue, alpha = channels(self._table.colors[key])
        return f"#{red:02x}{green:02x}{blue:02x}" if alpha == 255 else f"rgba({red},{green},{blue},{alpha})"

    @staticmethod
    @cache
    def font(px: int = 12, bold: bool = False, mono: bool = False) -> QFont:
        """Text 12, secondary 11. `mono` for numbers and output; digits of one width, so that numbers do not
        jump. The object is shared.
        """
        font = QFont()
        font.setFamilies(MONO_FAMILIES if mono else UI_FAMILIES)
        font.setPixelSize(px)
        font.setBold(bold)
        font.setFeature(QFont.Tag("tnum"), 1)
        return font

    def icon(self, name: str, color: str = "icon.foreground") -> QIcon:
        """A codicon that follows the theme. `color` is a colour id."""
        assert name in CODEPOINTS, f"no icon {name}: add it to CODEPOINTS"
        return QIcon(
            CodiconEngine(name, partial(self.color, color), partial(self.color, "disabledForeground"))
        )
