"""The two high-contrast themes: few colours, each with a role, and a line around whatever can be used.

Text stands 7:1 and more off what it is on, lines and charts 3:1. A selection is a line too, never a fill
alone: where `contrastBorder` is no transparent colour, the style sheet of qss.py gets its second part, and
painted rows draw `contrastActiveBorder` around what is chosen. Read colors.py first.
"""

from __future__ import annotations

from typing import NamedTuple


class Role(NamedTuple):
    """A colour in the dark and in the light theme, and the ids that have it."""

    dark: str
    light: str
    ids: str


_ROLES = (
    Role(
        "#000000",
        "#FFFFFF",
        "editor.background sideBar.background titleBar.activeBackground activityBar.background"
        " panel.background statusBar.background menu.background editorGroupHeader.tabsBackground"
        " editorWidget.background editorHoverWidget.background tab.activeBackground tab.inactiveBackground"
        " button.secondaryBackground checkbox.background input.background dropdown.background"
        " dropdown.listBackground quickInput.background commandCenter.background rankdeck.card.background"
        " badge.foreground activityBarBadge.foreground button.foreground",
    ),
    Role(
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
    Role(
        "#D6D6D6",
        "#3B3B3B",
        "descriptionForeground editorLineNumber.foreground input.placeholderForeground rankdeck.axis",
    ),
    Role("#8C8C8C", "#767676", "disabledForeground scrollbarSlider.background rankdeck.grid"),
    Role(
        "#6FC3DF",
        "#0F4A85",
        "contrastBorder widget.border titleBar.border commandCenter.border menu.border"
        " menu.separatorBackground activityBar.border sideBar.border editorGroupHeader.tabsBorder"
        " editorHoverWidget.border tab.unfocusedActiveBorderTop tab.border panel.border statusBar.border"
        " input.border dropdown.border rankdeck.card.border scrollbarSlider.hoverBackground",
    ),
    Role(
        "#F38518",
        "#006BBD",
        "contrastActiveBorder focusBorder inputOption.activeBorder activityBar.activeBorder"
        " tab.activeBorderTop panelTitle.activeBorder",
    ),
    Role("#6FD0FF", "#0F4A85", "button.background"),
    Role("#A6E1FF", "#083763", "button.hoverBackground activityBarBadge.background"),
    Role(
        "#0E2E47",
        "#D5E7F8",
        "list.activeSelectionBackground menu.selectionBackground selection.background",
    ),
    Role(
        "#1F2A33",
        "#E6EEF6",
        "list.inactiveSelectionBackground list.hoverBackground menubar.selectionBackground"
        " toolbar.hoverBackground statusBarItem.hoverBackground commandCenter.activeBackground"
        " tab.hoverBackground button.secondaryHoverBackground editor.lineHighlightBackground",
    ),
    Role("#453300", "#FFEFC2", "editor.findMatchHighlightBackground"),
    Role("#F385184D", "#006BBD3D", "editorGroup.dropBackground"),
    Role("#00000000", "#00000000", "widget.shadow"),
    Role("#7CC8FF", "#00488C", "textLink.foreground list.highlightForeground editorInfo.foreground"),
    Role(
        "#FF8F87",
        "#A1160B",
        "errorForeground editorError.foreground inputValidation.errorBorder rankdeck.capacity",
    ),
    Role("#FFB84D", "#7A4300", "editorWarning.foreground rankdeck.leadText"),
    Role("#FFB84D", "#B86A00", "rankdeck.lead rankdeck.kind.gathered"),
    Role("#FFB84D40", "#B86A0033", "rankdeck.leadFill"),
    Role("#6FC3FF", "#0A5A99", "rankdeck.rest rankdeck.loss"),
    Role("#6FC3FF59", "#0A5A9940", "rankdeck.restFill"),
    Role("#4F7FA0", "#6C97B8", "rankdeck.lossRaw"),
    Role("#5FD970", "#0B5420", "rankdeck.ok"),
    Role("#CDE8BE", "#06553A", "rankdeck.number"),
    Role("#1C1C1C", "#EBEBEB", "rankdeck.track"),
    Role("#10151C", "#F1F5FB", "rankdeck.heat.0"),
    Role("#1F3B57", "#B9D4EE", "rankdeck.heat.1"),
    Role("#2E70A6", "#5FA3CF", "rankdeck.heat.2"),
    Role("#63ABE0", "#1F6BA6", "rankdeck.heat.3"),
    Role("#D3EBFF", "#062650", "rankdeck.heat.4"),
    Role("#4C74A3", "#16385E", "rankdeck.kind.parameters"),
    Role("#6694C8", "#2F5F95", "rankdeck.kind.gradients"),
    Role("#8BB6E4", "#4E80B5", "rankdeck.kind.optimizer"),
    Role("#6F88A8", "#46607F", "rankdeck.kind.buffers"),
    Role("#BCD9F7", "#6792BF", "rankdeck.kind.activations"),
    Role("#9ACBDF", "#3F7F99", "rankdeck.kind.communication"),
    Role("#DDEBFA", "#7792AE", "rankdeck.kind.inputs"),
    Role("#A3B1C2", "#6B7E94", "rankdeck.kind.temporary"),
    Role("#7C8896", "#8A929C", "rankdeck.kind.unattributed"),
)

CONTRAST_DARK: dict[str, str] = {key: role.dark for role in _ROLES for key in role.ids.split()}
CONTRAST_LIGHT: dict[str, str] = {key: role.light for role in _ROLES for key in role.ids.split()}
