"""Builds the app's only style sheet: everything that Fusion and a palette cannot express.

A widget's look is set by style properties, never by a style sheet of its own:

    QPushButton  kind = "primary" | "link" | "quiet" | "segment" | "field"    (unset: the secondary look)
                 flush = "true"                      aligns a link or quiet button with the text
    QPlainTextEdit  kind = "field"                   looks like a line edit
    QToolButton  kind = "tool"                       flat, with a hover effect
    QLabel       tone = "dim" | "small" | "title" | "section" | "error" | "warning" | "mono"
    QFrame       kind = "card" | "floating"
    QComboBox    compact = "true"                    small, for the panel's header
    QListView    roomy = "true"                      rows of 22 px
    any field    invalid = "true"                    has a border in the error colour

`set_style_properties` sets such a property and repolishes a visible widget.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from PySide6.QtWidgets import QWidget

MONO_FAMILIES = ["Cascadia Mono", "Ubuntu Mono", "Noto Sans Mono", "DejaVu Sans Mono", "monospace"]
"""Font families for code and numbers; the first one installed is used."""

# No bold in a :checked state: Qt leaves it out of the button's size hint.
_STYLE_SHEET = """
QToolTip { background: @editorHoverWidget.background; color: @editorHoverWidget.foreground;
  border: 1px solid @editorHoverWidget.border; padding: 4px; }
QMenuBar { background: transparent; color: @titleBar.activeForeground; }
QMenuBar::item { padding: 3px 8px; border-radius: 4px; background: transparent; }
QMenuBar::item:disabled { color: @disabledForeground; }
QMenuBar::item:selected, QMenuBar::item:pressed { background: @menubar.selectionBackground; }
QMenu { background: @menu.background; color: @menu.foreground;
  border: 1px solid @menu.border; padding: 4px 0; }
QMenu::item { padding: 4px 28px 4px 28px; }
QMenu::item:selected { background: @menu.selectionBackground; color: @menu.selectionForeground; }
QMenu::item:disabled { color: @disabledForeground; }
QMenu::separator { height: 1px; background: @menu.separatorBackground; margin: 4px 0; }
QPushButton { background: @button.secondaryBackground; color: @button.secondaryForeground;
  border: 1px solid transparent; border-radius: 4px; padding: 4px 12px; }
QPushButton:hover { background: @button.secondaryHoverBackground; }
QPushButton:focus { border-color: @focusBorder; }
QPushButton:disabled { color: @disabledForeground; }
QPushButton[kind="primary"] { background: @button.background; color: @button.foreground; font-weight: 600; }
QPushButton[kind="primary"]:hover { background: @button.hoverBackground; }
QPushButton[kind="primary"]:focus { border-color: @foreground; }
QPushButton[kind="primary"]:disabled { background: @button.secondaryBackground; color: @disabledForeground; }
QPushButton[kind="link"] { background: transparent; color: @textLink.foreground; padding: 0 2px; text-align:
  left; }
QPushButton[kind="quiet"] { background: transparent; color: @descriptionForeground; padding: 0 2px; }
QPushButton[kind="quiet"]:hover, QPushButton[kind="quiet"]:focus { color: @textLink.foreground; }
QPushButton[flush="true"] { border: 0; padding: 0; text-align: left; }
QPushButton[flush="true"]:focus { text-decoration: underline; }
QPushButton[kind="segment"] { background: transparent; color: @descriptionForeground; border-radius: 3px;
  border: 1px solid @dropdown.border; padding: 2px 8px; }
QPushButton[kind="segment"]:checked { background: @button.secondaryHoverBackground; color: @foreground;
  border-color: @inputOption.activeBorder; }
QPushButton[kind="segment"]:focus { border-color: @focusBorder; }
QPushButton[kind="segment"]:disabled { color: @disabledForeground; }
QPushButton[kind="field"] { background: @dropdown.background; color: @dropdown.foreground;
  border: 1px solid @dropdown.border; border-radius: 3px; padding: 3px 6px; text-align: left; }
QPushButton[kind="field"]:hover, QPushButton[kind="field"]:focus { border-color: @focusBorder; }
QPushButton[invalid="true"], QPlainTextEdit[kind="field"][invalid="true"] {
  border-color: @inputValidation.errorBorder; }
QToolButton[kind="tool"] { background: transparent; border: 1px solid transparent; border-radius: 4px;
  padding: 2px; }
QToolButton[kind="tool"]:hover { background: @toolbar.hoverBackground; }
QToolButton[kind="tool"]:checked { background: @button.secondaryHoverBackground; }
QToolButton[kind="tool"]:focus { border-color: @focusBorder; }
QToolButton[kind="tool"]::menu-indicator { image: none; }
QLabel[tone="dim"] { color: @descriptionForeground; }
QLabel[tone="small"] { color: @descriptionForeground; font-size: 11px; }
QLabel[tone="name"] { font-weight: 700; }
QLabel[tone="title"] { font-size: 17px; font-weight: 700; }
QLabel[tone="section"] { font-size: 11px; font-weight: 700; color: @sideBarSectionHeader.foreground; }
QLabel[tone="error"] { color: @errorForeground; }
QLabel[tone="warning"] { color: @rankdeck.leadText; }
QLabel[tone="mono"] { font-family: @mono; }
QFrame[kind="card"] { background: @rankdeck.card.background; border: 1px solid @rankdeck.card.border;
  border-radius: 6px; }
QFrame[kind="floating"] { background: @quickInput.background; border: 1px solid @widget.border; border-radius:
  8px; }
QLineEdit, QAbstractSpinBox { background: @input.background; color: @input.foreground;
  border: 1px solid @input.border; border-radius: 3px; padding: 3px 6px; min-height: 20px;
  selection-background-color: @selection.background; selection-color: @foreground;
  placeholder-text-color: @input.placeholderForeground; }
QComboBox { background: @dropdown.background; color: @dropdown.foreground; border: 1px solid @dropdown.border;
  border-radius: 3px; padding: 3px 4px; min-height: 20px; }
QLineEdit:focus, QAbstractSpinBox:focus, QComboBox:focus { border-color: @focusBorder; }
QLineEdit { padding: 3px 4px; }
QLineEdit[invalid="true"], QAbstractSpinBox[invalid="true"], QComboBox[invalid="true"] {
  border-color: @inputValidation.errorBorder; }
QLineEdit:disabled, QAbstractSpinBox:disabled, QComboBox:disabled { color: @disabledForeground; }
QComboBox[compact="true"], QLineEdit[compact="true"] { min-height: 18px; padding: 1px 4px; font-size: 11px; }
QAbstractSpinBox QLineEdit, QComboBox QLineEdit { border: 0; padding: 0; min-height: 0; background:
  transparent; }
QComboBox::drop-down { border: 0; width: 20px; }
QTabBar::scroller { width: 40px; }
QComboBox QAbstractItemView { background: @dropdown.listBackground; color: @dropdown.foreground;
  border: 1px solid @dropdown.border; selection-background-color: @list.activeSelectionBackground;
  selection-color: @list.activeSelectionForeground; outline: 0; }
QAbstractItemView { border: 0; outline: 0; background: transparent; }
QListView[roomy="true"]::item { padding: 4px 2px; }
QTreeView::item { padding: 0 5px; }
QAbstractScrollArea::corner { background: transparent; }
QHeaderView { background: @sideBar.background; border: 0; }
QHeaderView::section { background: @sideBar.background; color: @descriptionForeground; border: 0;
  border-bottom: 1px solid @sideBar.border; padding: 4px 8px; font-size: 11px; }
QHeaderView::section:hover { color: @foreground; }
QScrollArea, QPlainTextEdit, QTextEdit, QStackedWidget { border: 0; background: transparent; }
QPlainTextEdit[kind="field"] { background: @input.background; color: @input.foreground;
  border: 1px solid @input.border; border-radius: 3px; padding: 1px 2px;
  selection-background-color: @selection.background; selection-color: @foreground; }
QPlainTextEdit[kind="field"]:focus { border-color: @focusBorder; }
QScrollArea > QWidget > QWidget { background: transparent; }
QScrollBar:vertical { width: 10px; background: transparent; margin: 0; }
QScrollBar:horizontal { height: 10px; background: transparent; margin: 0; }
QScrollBar::handle { background: @scrollbarSlider.background; min-height: 24px; min-width: 24px; margin: 2px;
  border-radius: 3px; }
QScrollBar::handle:hover { background: @scrollbarSlider.hoverBackground; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }
QSplitter::handle { background: @sideBar.border; }
QSplitter::handle:hover { background: @focusBorder; }
QWidget#titleBar { background: @titleBar.activeBackground; border-bottom: 1px solid @titleBar.border; }
QPushButton#commandCenter { background: @commandCenter.background; color: @commandCenter.foreground;
  border: 1px solid @commandCenter.border; border-radius: 6px; padding: 2px 12px; }
QPushButton#commandCenter:hover, QPushButton#commandCenter:focus { background:
  @commandCenter.activeBackground; }
QWidget#activityBar { background: @activityBar.background; border-right: 1px solid @activityBar.border; }
QWidget#sideBar { background: @sideBar.background; border-right: 1px solid @sideBar.border; }
QWidget#sideBarFooter { background: @sideBar.background; }
QWidget#editorArea, QWidget#tabGroup { background: @editor.background; }
QWidget#tabStrip { background: @editorGroupHeader.tabsBackground;
  border-bottom: 1px solid @editorGroupHeader.tabsBorder; }
QWidget#dropOverlay { background: @editorGroup.dropBackground; }
QWidget#panel { background: @panel.background; border-top: 1px solid @panel.border; }
QWidget#problemRow[chosen="true"] { background: @list.inactiveSelectionBackground; }
QWidget#findBar { background: @editorWidget.background; border-bottom: 1px solid @widget.border; }
QWidget#statusBar { background: @statusBar.background; border-top: 1px solid @statusBar.border; }
"""

# For the compact density: the same look with less padding around text.
_COMPACT_SHEET = """
QMenu::item { padding: 2px 28px 2px 28px; }
QMenu::separator { margin: 2px 0; }
QPushButton { padding: 2px 10px; }
QPushButton[kind="link"], QPushButton[kind="quiet"] { padding: 0 2px; }
QPushButton[flush="true"] { padding: 0; }
QPushButton[kind="segment"] { padding: 1px 8px; }
QPushButton[kind="field"] { padding: 1px 6px; }
QPushButton#commandCenter { padding: 2px 12px; }
QLineEdit, QAbstractSpinBox, QComboBox { min-height: 18px; padding: 1px 6px; }
QLineEdit, QComboBox { padding: 1px 4px; }
QAbstractSpinBox QLineEdit, QComboBox QLineEdit { padding: 0; min-height: 0; }
QListView[roomy="true"]::item { padding: 2px; }
QHeaderView::section { padding: 2px 8px; }
"""

# For high-contrast themes: an outline around controls, and another around what is selected or hovered.
_HIGH_CONTRAST_SHEET = """
QPushButton { border-color: @contrastBorder; }
QPushButton[kind="link"], QPushButton[kind="quiet"] { border-color: transparent; }
QPushButton[kind="link"] { text-decoration: underline; }
QPushButton:hover, QPushButton[kind="segment"]:checked, QToolButton[kind="tool"]:hover,
  QToolButton[kind="tool"]:checked, QPushButton#commandCenter:hover { border-color: @contrastActiveBorder; }
QPushButton:focus, QPushButton[kind="link"]:focus, QPushButton[kind="quiet"]:focus,
  QToolButton[kind="tool"]:focus, QPushButton#commandCenter:focus { border-color: @focusBorder; }
QPushButton[kind="primary"]:focus { border: 2px solid @foreground; padding: 3px 11px; }
QPushButton[kind="segment"]:checked { border: 2px solid @contrastActiveBorder; padding: 1px 7px; }
QPushButton:disabled { border: 1px dashed @disabledForeground; }
QMenuBar::item:selected { background: transparent; color: @contrastActiveBorder; text-decoration: underline; }
QMenu::item { border: 1px solid transparent; }
QMenu::item:selected { border-color: @contrastActiveBorder; }
QTreeView::item { border: 1px solid transparent; border-width: 1px 0; padding: 0 5px; }
QComboBox QAbstractItemView::item:selected, QListView[roomy="true"]::item:selected {
  border: 1px solid @contrastActiveBorder; color: @list.activeSelectionForeground;
  background: @list.activeSelectionBackground; }
QTreeView::item:selected { border-color: @contrastActiveBorder;
  color: @list.activeSelectionForeground; background: @list.activeSelectionBackground; }
QTreeView::item:selected:first { border-left-width: 1px; padding-left: 4px; }
QTreeView::item:selected:last { border-right-width: 1px; padding-right: 4px; }
QWidget#problemRow[chosen="true"] { border: 1px solid @contrastActiveBorder; }
QSplitter::handle:hover { background: @contrastActiveBorder; }
"""

_UNQUOTABLE_CHARACTERS = re.compile(r'["\\\n]')
_COLOR_ID = re.compile(r"@([A-Za-z]+(?:\.[A-Za-z]+)*)")


def style_sheet(hex_of: Callable[[str], str], *, high_contrast: bool = False, compact: bool = False) -> str:
    """Return the style sheet with every @id replaced by the colour that `hex_of` returns for the id. The
    rules for `high_contrast` and `compact` are appended if set."""
    # A name may come from the settings; quotes and backslashes in it would break the style sheet.
    mono = ", ".join(f'"{_UNQUOTABLE_CHARACTERS.sub("", name)}"' for name in MONO_FAMILIES)
    # Before the colours are replaced, because @mono looks like a colour id.
    sheet = _STYLE_SHEET.replace("@mono", mono)
    # The order matters: of rules with equal weight, the last takes precedence.
    sheets = (sheet, compact and _COMPACT_SHEET, high_contrast and _HIGH_CONTRAST_SHEET)
    return _COLOR_ID.sub(lambda match: hex_of(match[1]), "".join(section for section in sheets if section))


def set_style_properties(widget: QWidget, **properties: str) -> None:
    """Set style properties of a widget and apply them at once."""
    for name, value in properties.items():
        widget.setProperty(name, value)
    if widget.isVisible():
        widget.style().unpolish(widget)
        widget.style().polish(widget)
