"""The frame of the window, independent of views: window, tabs, palette, panel and toasts. Start with
window.py."""
