"""The frame of the window, which does not depend on views: main window, tabs, palette, panel and toasts. Read
window.py first."""
