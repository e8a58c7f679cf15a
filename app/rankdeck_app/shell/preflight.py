"""Checks whether Qt can start, because Qt itself aborts the process with a misleading message if it cannot.

The checks use only the standard library and are fast, since they run before everything else.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys

# Libraries that Qt's xcb plugin needs beyond a minimal Debian, with their packages.
_XCB_LIBRARIES = {
    "libEGL.so.1": "libegl1",
    "libGL.so.1": "libgl1",
    "libglib-2.0.so.0": "libglib2.0-0",
    "libfontconfig.so.1": "libfontconfig1",
    "libdbus-1.so.3": "libdbus-1-3",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-shape.so.0": "libxcb-shape0",
}
_REQUIRED_LIBRARIES = (
    "libEGL.so.1",
    "libGL.so.1",
    "libglib-2.0.so.0",
    "libfontconfig.so.1",
    "libdbus-1.so.3",
)
_HEADLESS_PLATFORMS = ("offscreen", "minimal", "minimalegl", "vnc", "linuxfb", "eglfs", "vkkhrdisplay")


def find_startup_problem(environ: dict[str, str] | None = None) -> str | None:
    """Return a line that explains why the app cannot start here and how to fix that; None if it can start."""
    env = dict(os.environ) if environ is None else environ
    if importlib.util.find_spec("PySide6") is None or importlib.util.find_spec("pyqtgraph") is None:
        return "The app needs PySide6 and pyqtgraph, which are not installed: pip install 'rankdeck[app]'"
    if not sys.platform.startswith("linux"):
        return None
    # The value may list options ("offscreen:...") or alternatives ("wayland;xcb").
    platform = env.get("QT_QPA_PLATFORM", "").split(":")[0].split(";")[0]
    if platform not in _HEADLESS_PLATFORMS and not (env.get("DISPLAY") or env.get("WAYLAND_DISPLAY")):
        return (
            "No display found: neither DISPLAY nor WAYLAND_DISPLAY is set. "
            "Start the app from a desktop session, or use the command line: rankdeck --help"
        )
    on_x11 = platform == "xcb" or (not platform and not env.get("WAYLAND_DISPLAY"))
    names = _XCB_LIBRARIES if on_x11 else _REQUIRED_LIBRARIES
    missing = [name for name in names if not _can_load(name)]
    if missing:
        packages = " ".join(_XCB_LIBRARIES[name] for name in missing)
        return (
            f"Qt needs libraries that are not installed ({', '.join(missing)}): sudo apt install {packages}"
        )
    return None


def _can_load(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True
