"""The frame, which knows no view: window, tabs, palette, panel and toasts. Read window.py first."""
