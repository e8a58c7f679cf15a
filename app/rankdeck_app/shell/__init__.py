"""The window's frame, which does not depend on the views: main window, tabs, palette, panel and toasts. Read
window.py first."""
