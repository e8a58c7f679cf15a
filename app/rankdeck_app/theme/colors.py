"""Defines the built-in themes' colours by VS Code id, and fallbacks for ids that a foreign theme leaves
unset.

Values are #RRGGBB or #RRGGBBAA, as in VS Code. A VS Code theme sets only some of these ids; `Color.fallback`
defines how to derive the others, so that a foreign theme stays consistent. Ids that start with "rankdeck."
are our own, for charts and kinds of memory. Amber is the only warm colour, reserved for imbalance and
problems; kinds of memory are shades of blue.
"""

from __future__ import annotations

from typing import NamedTuple


class Mix(NamedTuple):
    """A share of the colour `over`, blended onto `base`."""

    base: str
    share: float
    over: str = "foreground"


class Color(NamedTuple):
    """The built-in colours of a colour id, for dark and light themes.

    `fallback` defines the colour in a VS Code theme that does not set the id: it is another id, a mix of two
    colours, or None for the built-in colour.
    """

    dark: str
    light: str
    fallback: str | Mix | None = None


COLORS: dict[str, Color] = {
    "foreground": Color("#CCCCCC", "#3B3B3B"),
    "descriptionForeground": Color("#9D9D9D", "#616161", Mix("editor.background", 0.7)),
    "disabledForeground": Color("#6F6F6F", "#9A9A9A", Mix("editor.background", 0.45)),
    "errorForeground": Color("#F85149", "#C72E0F"),
    "icon.foreground": Color("#CCCCCC", "#3B3B3B", "foreground"),
    "contrastBorder": Color("#00000000", "#00000000"),
    "contrastActiveBorder": Color("#00000000", "#00000000"),
    "focusBorder": Color("#0078D4", "#005FB8"),
    "textLink.foreground": Color("#4DAAFC", "#005FB8", "focusBorder"),
    "widget.border": Color("#313131", "#E5E5E5", Mix("editor.background", 0.2)),
    "widget.shadow": Color("#0000005C", "#00000029"),
    "selection.background": Color("#264F78", "#ADD6FF"),
    "titleBar.activeBackground": Color("#181818", "#F8F8F8", "sideBar.background"),
    "titleBar.activeForeground": Color("#CCCCCC", "#1E1E1E", "foreground"),
    "titleBar.border": Color("#2B2B2B", "#E5E5E5", "sideBar.border"),
    "commandCenter.background": Color("#FFFFFF0D", "#FFFFFF", Mix("titleBar.activeBackground", 0.06)),
    "commandCenter.foreground": Color("#9D9D9D", "#616161", "descriptionForeground"),
    "commandCenter.border": Color("#FFFFFF24", "#CECECE", Mix("titleBar.activeBackground", 0.2)),
    "commandCenter.activeBackground": Color("#FFFFFF17", "#F2F2F2", Mix("titleBar.activeBackground", 0.12)),
    "menu.background": Color("#1F1F1F", "#FFFFFF", "editor.background"),
    "menu.foreground": Color("#CCCCCC", "#3B3B3B", "foreground"),
    "menu.border": Color("#454545", "#CECECE", "widget.border"),
    "menu.selectionBackground": Color("#0078D4", "#005FB8", "list.activeSelectionBackground"),
    "menu.selectionForeground": Color("#FFFFFF", "#FFFFFF", "list.activeSelectionForeground"),
    "menu.separatorBackground": Color("#454545", "#D4D4D4", "widget.border"),
    "menubar.selectionBackground": Color("#FFFFFF1A", "#00000014"),
    "toolbar.hoverBackground": Color("#FFFFFF1A", "#00000014"),
    "activityBar.background": Color("#181818", "#F8F8F8", "sideBar.background"),
    "activityBar.foreground": Color("#D7D7D7", "#1F1F1F", "foreground"),
    "activityBar.inactiveForeground": Color(
        "#868686", "#616161", Mix("activityBar.background", 0.55, "activityBar.foreground")
    ),
    "activityBar.activeBorder": Color("#0078D4", "#005FB8", "focusBorder"),
    "activityBar.border": Color("#2B2B2B", "#E5E5E5", "sideBar.border"),
    "activityBarBadge.background": Color("#0078D4", "#005FB8"),
    "activityBarBadge.foreground": Color("#FFFFFF", "#FFFFFF"),
    "badge.background": Color("#616161", "#CCCCCC"),
    "badge.foreground": Color("#F8F8F8", "#3B3B3B"),
    "sideBar.background": Color("#181818", "#F8F8F8", "editor.background"),
    "sideBar.foreground": Color("#CCCCCC", "#3B3B3B", "foreground"),
    "sideBar.border": Color("#2B2B2B", "#E5E5E5", Mix("editor.background", 0.1)),
    "sideBarSectionHeader.foreground": Color("#CCCCCC", "#3B3B3B", "sideBar.foreground"),
    "editor.background": Color("#1F1F1F", "#FFFFFF"),
    "editor.lineHighlightBackground": Color("#FFFFFF0B", "#0000000A", Mix("editor.background", 0.05)),
    "editor.findMatchHighlightBackground": Color(
        "#F2CC6050", "#FFDF5D90", Mix("editor.background", 0.2, "rankdeck.lead")
    ),
    "editorGroup.dropBackground": Color("#0078D44D", "#005FB83D"),
    "editorGroupHeader.tabsBackground": Color("#181818", "#F8F8F8", "sideBar.background"),
    "editorGroupHeader.tabsBorder": Color("#2B2B2B", "#E5E5E5", "sideBar.border"),
    "editorLineNumber.foreground": Color("#949CA6", "#656D76"),
    "editorWidget.background": Color("#202020", "#F8F8F8", "sideBar.background"),
    "editorHoverWidget.background": Color("#202020", "#F8F8F8", "editorWidget.background"),
    "editorHoverWidget.foreground": Color("#CCCCCC", "#3B3B3B", "foreground"),
    "editorHoverWidget.border": Color("#454545", "#C8C8C8", "widget.border"),
    "editorError.foreground": Color("#F85149", "#C72E0F"),
    "editorWarning.foreground": Color("#E2B03F", "#A85F00"),
    "editorInfo.foreground": Color("#5BB8F5", "#0F6CB0"),
    "tab.activeBackground": Color("#1F1F1F", "#FFFFFF", "editor.background"),
    "tab.activeForeground": Color("#FFFFFF", "#3B3B3B", "foreground"),
    "tab.activeBorderTop": Color("#0078D4", "#005FB8", "focusBorder"),
    "tab.inactiveBackground": Color("#181818", "#F8F8F8", "editorGroupHeader.tabsBackground"),
    "tab.inactiveForeground": Color("#9D9D9D", "#616161", "descriptionForeground"),
    "tab.hoverBackground": Color("#1F1F1F", "#FFFFFF", "tab.activeBackground"),
    "tab.unfocusedActiveBorderTop": Color("#2B2B2B", "#E5E5E5", "tab.border"),
    "tab.border": Color("#2B2B2B", "#E5E5E5", "sideBar.border"),
    "breadcrumb.foreground": Color("#9D9D9D", "#616161", "descriptionForeground"),
    "panel.background": Color("#181818", "#F8F8F8", "sideBar.background"),
    "panel.border": Color("#2B2B2B", "#E5E5E5", "sideBar.border"),
    "panelTitle.activeForeground": Color("#CCCCCC", "#3B3B3B", "foreground"),
    "panelTitle.inactiveForeground": Color("#9D9D9D", "#616161", "descriptionForeground"),
    "panelTitle.activeBorder": Color("#0078D4", "#005FB8", "focusBorder"),
    "statusBar.background": Color("#181818", "#F8F8F8", "sideBar.background"),
    "statusBar.foreground": Color("#CCCCCC", "#3B3B3B", "foreground"),
    "statusBar.border": Color("#2B2B2B", "#E5E5E5", "sideBar.border"),
    "statusBarItem.hoverBackground": Color("#F1F1F133", "#00000014"),
    "button.background": Color("#0078D4", "#005FB8"),
    "button.foreground": Color("#FFFFFF", "#FFFFFF"),
    "button.hoverBackground": Color("#026EC1", "#0258A8", Mix("button.background", 0.15)),
    "button.secondaryBackground": Color("#313131", "#E5E5E5", Mix("editor.background", 0.12)),
    "button.secondaryForeground": Color("#CCCCCC", "#3B3B3B", "foreground"),
    "button.secondaryHoverBackground": Color("#3C3C3C", "#CCCCCC", Mix("editor.background", 0.18)),
    "checkbox.background": Color("#313131", "#FFFFFF", "input.background"),
    "input.background": Color("#313131", "#FFFFFF", Mix("editor.background", 0.08)),
    "input.foreground": Color("#CCCCCC", "#3B3B3B", "foreground"),
    "input.border": Color("#3C3C3C", "#CECECE", Mix("editor.background", 0.2)),
    "input.placeholderForeground": Color("#989898", "#767676", "descriptionForeground"),
    "inputOption.activeBorder": Color("#3C3C3C", "#CECECE", "dropdown.border"),
    "inputValidation.errorBorder": Color("#F85149", "#C72E0F"),
    "dropdown.background": Color("#313131", "#FFFFFF", "input.background"),
    "dropdown.foreground": Color("#CCCCCC", "#3B3B3B", "input.foreground"),
    "dropdown.border": Color("#3C3C3C", "#CECECE", "input.border"),
    "dropdown.listBackground": Color("#1F1F1F", "#FFFFFF", "dropdown.background"),
    "list.hoverBackground": Color("#2A2D2E", "#F2F2F2", Mix("sideBar.background", 0.07)),
    "list.activeSelectionBackground": Color(
        "#04395E", "#E8E8E8", Mix("sideBar.background", 0.4, "focusBorder")
    ),
    "list.activeSelectionForeground": Color("#FFFFFF", "#000000", "foreground"),
    "list.inactiveSelectionBackground": Color("#37373D", "#E4E6F1", Mix("sideBar.background", 0.12)),
    "list.highlightForeground": Color("#2AAAFF", "#0066BF"),
    "quickInput.background": Color("#222222", "#F8F8F8", "editorWidget.background"),
    "quickInput.foreground": Color("#CCCCCC", "#3B3B3B", "foreground"),
    "scrollbarSlider.background": Color("#79797966", "#64646466"),
    "scrollbarSlider.hoverBackground": Color("#646464B3", "#646464B3"),
    "rankdeck.card.background": Color("#232323", "#FFFFFF", Mix("editor.background", 0.025)),
    "rankdeck.card.border": Color("#2B2B2B", "#E5E5E5", "sideBar.border"),
    "rankdeck.track": Color("#2A2A2A", "#EEEEEE", Mix("editor.background", 0.07)),
    "rankdeck.grid": Color("#2E2E2E", "#ECECEC", Mix("editor.background", 0.09)),
    "rankdeck.axis": Color("#8A8A8A", "#6B6B6B", "descriptionForeground"),
    "rankdeck.median": Color("#E6E6E6", "#222222", "foreground"),
    "rankdeck.capacity": Color("#F85149", "#C72E0F", "errorForeground"),
    "rankdeck.lead": Color("#F2A93B", "#C77700"),
    "rankdeck.leadText": Color("#F2A93B", "#A85F00"),
    "rankdeck.leadFill": Color("#F2A93B2B", "#C777002B"),
    "rankdeck.rest": Color("#5BB8F5", "#1B7FC4"),
    "rankdeck.restFill": Color("#5BB8F546", "#1B7FC446"),
    "rankdeck.loss": Color("#5BB8F5", "#1B7FC4"),
    "rankdeck.lossRaw": Color("#33566B", "#82B4DC"),
    "rankdeck.ok": Color("#3FB950", "#116329"),
    "rankdeck.number": Color("#B5CEA8", "#098658"),
    "rankdeck.heat.0": Color("#20262E", "#F1F5FB"),
    "rankdeck.heat.1": Color("#1F3B57", "#C3DAF0"),
    "rankdeck.heat.2": Color("#27608F", "#6BAED6"),
    "rankdeck.heat.3": Color("#4A93C9", "#2B7BBA"),
    "rankdeck.heat.4": Color("#A8D4F5", "#08306B"),
    "rankdeck.kind.parameters": Color("#3F5F86", "#274C77"),
    "rankdeck.kind.gradients": Color("#5580AE", "#4A78AB"),
    "rankdeck.kind.optimizer": Color("#7AA3CF", "#7BA3CE"),
    "rankdeck.kind.buffers": Color("#5E7390", "#5C7391"),
    "rankdeck.kind.activations": Color("#A9C8E8", "#B4CFEA"),
    "rankdeck.kind.communication": Color("#86B6C9", "#6FA5BC"),
    "rankdeck.kind.inputs": Color("#C9DCEF", "#CFE0F1"),
    "rankdeck.kind.temporary": Color("#8C9BAD", "#93A3B6"),
    "rankdeck.kind.unattributed": Color("#4B5563", "#C3CAD3"),
    # The only kind in amber: gathered outputs fill the lead device, so they show an imbalance.
    "rankdeck.kind.gathered": Color("#F2A93B", "#D98200"),
}

DARK: dict[str, str] = {key: color.dark for key, color in COLORS.items()}
LIGHT: dict[str, str] = {key: color.light for key, color in COLORS.items()}
