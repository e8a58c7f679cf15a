"""Provides the current theme: colours by VS Code id, fonts, icons, and the look of plain Qt widgets.

Fusion draws the widgets; a QPalette provides most colours, one small style sheet (qss.py) the rest. Widgets
that paint themselves call `color` and repaint on `changed`. Setting the app's style sheet repolishes every
widget (hundreds of ms for 700 widgets), so only `Theme` sets a style sheet: elsewhere, use the object names
and properties that qss.py lists.
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
"""Theme name that selects the built-in theme matching the desktop's preference."""
UI_FAMILIES = ["Segoe UI", "Ubuntu", "Noto Sans", "DejaVu Sans", "sans-serif"]


def prefer_families(ui: str, mono: str) -> None:
    """Prefer the font families `ui` and `mono` to the default families in all fonts created from now on.
    Families that are not installed are skipped."""
    for name, families in ((ui, UI_FAMILIES), (mono, MONO_FAMILIES)):
        if name.strip():
            # In place, because qss.py reads the same list.
            families.insert(0, name.strip())


def theme_label(name: str) -> str:
    """Return a theme's display name; built-in names are translated."""
    return tr(name) if name in (*BUILT_IN_THEMES, SYSTEM_THEME) else name


def system_theme() -> str:
    """Return the name of the built-in theme that matches the desktop's colour scheme and contrast; the theme
    is dark if the desktop has no preference."""
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
    """The current theme. `changed` is emitted after colours, palette and style sheet have been updated."""

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
        """The kind of theme, a key of vscode.BASE_COLORS such as 'dark' or 'high contrast light'."""
        return self._table.kind

    @property
    def is_light(self) -> bool:
        return self._table.is_light

    def load(self, name: str) -> None:
        """Switch to a built-in theme, the theme that matches the desktop (SYSTEM_THEME), or a VS Code theme
        file.

        Raises:
            ThemeError: the theme does not exist or its file cannot be used; the current theme remains.
        """
        table = BUILT_IN_THEMES.get(system_theme() if name == SYSTEM_THEME else name)
        if table is None:
            if not name.endswith((".json", ".jsonc")):
                names = ", ".join([*BUILT_IN_THEMES, SYSTEM_THEME])
                raise ThemeError(
                    tr(
                        "There is no theme {name!r}. Use {known}, or the path of a JSON theme.",
                        name=name,
                        known=names,
                    )
                )
            table = load_vscode_theme(Path(name))
        # Only built-in tables are shared objects; a theme file is always applied again.
        if table is self._table:
            return
        self._table = table
        self._cache.clear()
        if QApplication.instance() is not None:
            self.apply()
        self.changed.emit()

    def set_compact(self, is_compact: bool) -> None:
        """Switch between compact and comfortable fields, buttons, rows and menus."""
        if is_compact == self._is_compact:
            return
        self._is_compact = is_compact
        self.apply()
        self.changed.emit()

    def apply(self) -> None:
        """Apply Fusion and this theme's palette, font and style sheet to the application."""
        app = QApplication.instance()
        assert isinstance(app, QApplication)
        if not app.property("isFusion"):  # a style sheet hides the style's name
            app.setStyle("Fusion")
            app.setProperty("isFusion", True)
        app.setPalette(self.palette())
        app.setFont(self.font())
        style_options = {"high_contrast": self._table.is_high_contrast, "compact": self._is_compact}
        app.setStyleSheet(style_sheet(self.hex, **style_options))

    def palette(self) -> QPalette:
        palette = QPalette()
        for role, key in _PALETTE_COLORS.items():
            palette.setColor(role, self.color(key))
        disabled = self.color("disabledForeground")
        # After the loop above: setColor without a group also sets the colours of disabled widgets.
        for role in (QPalette.ColorRole.WindowText, QPalette.ColorRole.Text, QPalette.ColorRole.ButtonText):
            palette.setColor(QPalette.ColorGroup.Disabled, role, disabled)
        return palette

    def color(self, key: str) -> QColor:
        """Return the colour of an id in colors.py. The object is shared: copy it before changing it."""
        # Widgets look colours up in every paint, so each colour is parsed once.
        color = self._cache.get(key)
        if color is None:
            color = self._cache[key] = QColor(*channels(self._table.colors[key]))
        return color

    def hex(self, key: str) -> str:
        """Return an id's colour as text for style sheets and rich text: #rrggbb, or rgba(...) if it is not
        opaque."""
        # As rgba(), because Qt reads eight digits as #AARRGGBB, with alpha first.
        red, green, blue, alpha = channels(self._table.colors[key])
        return f"#{red:02x}{green:02x}{blue:02x}" if alpha == 255 else f"rgba({red},{green},{blue},{alpha})"

    @staticmethod
    @cache
    def font(px: int = 12, bold: bool = False, mono: bool = False) -> QFont:
        """Return a font: 12 px for text, 11 px for secondary text, `mono` for numbers and output.

        Digits have equal width, so that numbers do not jump when they change. The font is shared: copy it
        before changing it.
        """
        font = QFont()
        font.setFamilies(MONO_FAMILIES if mono else UI_FAMILIES)
        font.setPixelSize(px)
        font.setBold(bold)
        font.setFeature(QFont.Tag("tnum"), 1)
        return font

    def icon(self, name: str, color: str = "icon.foreground") -> QIcon:
        """Return a codicon that follows the theme. `color` is a colour id."""
        assert name in CODEPOINTS, f"no icon {name}: add it to CODEPOINTS"
        return QIcon(
            CodiconEngine(name, partial(self.color, color), partial(self.color, "disabledForeground"))
        )
