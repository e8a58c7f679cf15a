"""Runs first in every Python process of an observed run: installs the observer, then runs the user's own
sitecustomize.

The observer's package object is built by hand, without importlib.util, whose import alone would cost every
helper process of a script some 5 ms. Read imports.py next.
"""

import os
import sys


def _install_observer() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    # As the script would find it without Rankdeck; children that inherit the environment are still observed.
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if sys.version_info < (3, 9) or not os.environ.get("RANKDECK_RUN"):
        return
    if os.environ.get("RANKDECK_OBSERVE") not in ("light", "full", "check"):
        return
    room = type(sys)("_rankdeck_observer")
    folder = os.path.dirname(here)
    room.__path__ = [folder]
    spec = type(sys.__spec__)(
        room.__name__, None, origin=os.path.join(folder, "__init__.py"), is_package=True
    )
    spec.submodule_search_locations = room.__path__
    room.__spec__ = spec
    sys.modules[room.__name__] = room
    __import__("_rankdeck_observer.imports")
    sys.modules["_rankdeck_observer.imports"].install_finders()
    __import__("_rankdeck_observer.early_stacks")
    sys.modules["_rankdeck_observer.early_stacks"].install(os.environ["RANKDECK_RUN"])


try:
    _install_observer()
except Exception:
    pass  # Fail silently: stderr belongs to the script.

# This module was imported under that name, which the user's own module needs.
sys.modules.pop("sitecustomize", None)
# The user's own sitecustomize; if there is none, site expects exactly this ImportError.
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
