"""Runs first in every Python of an observed run: arms the observer, then lets the person's own one run.

A plain import of a module made by hand: importlib.util alone costs some 5 ms, which each helper of a script
would pay. Read imports.py next.
"""

import os
import sys


def _install_observer() -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    # As the script would find it alone; children that inherit the environment are observed all the same.
    sys.path[:] = [entry for entry in sys.path if entry != here]
    if sys.version_info < (3, 9) or not os.environ.get("RANKDECK_RUN"):
        return
    if os.environ.get("RANKDECK_OBSERVE") not in ("light", "full"):
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


try:
    _install_observer()
except Exception:
    pass  # It fails open, and without a word: stderr is the script's.

sys.modules.pop("sitecustomize", None)
# The person's own; where there is none, site expects this very ImportError.
import sitecustomize  # type: ignore[import-not-found]  # noqa: E402, F401
