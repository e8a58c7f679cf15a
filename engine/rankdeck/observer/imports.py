"""Runs parts right after the modules that they watch were imported, and answers to `import rankdeck`.

One finder at the head of sys.meta_path asks the others and gives their answer on; the loader that they name
runs its module as ever, and the parts after it. It takes itself out once nothing is left to watch. Another
one stands last, so whatever the script would find itself comes first: where no package of the name rankdeck
is installed, it gives a module with `log`. No torch and little else is imported here: every Python of a run
pays for it. Read parts.py before, session.py next.
"""

import sys
from _thread import get_ident

from .parts import PARTS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_TORCH, _PACKAGE_NAME = "torch", "rankdeck"


class _WatchedModuleFinder:
    def __init__(self) -> None:
        self.pending_parts: "dict[str, list[tuple[str, str, str]]]" = {}
        for watched, part, file, function in PARTS:
            self.pending_parts.setdefault(watched, []).append((part, file, function))
        self._active_searches: "set[tuple[str, int]]" = set()
        self._deferred_modules: "list[tuple[str, ModuleType]]" = []

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        """What the other finders say; the loader of a watched module is followed."""
        key = (name, get_ident())
        if name not in self.pending_parts or key in self._active_searches:
            return None
        spec = None
        self._active_searches.add(key)
        try:
            for finder in list(sys.meta_path):
                if finder is not self and hasattr(finder, "find_spec"):
                    spec = finder.find_spec(name, path, target)
                    if spec is not None:
                        break
        finally:
            self._active_searches.discard(key)
        if spec is not None:
            try:
                self._wrap_loader(name, spec.loader)
            except Exception:
                pass
        return spec

    def _wrap_loader(self, name: str, loader: "Any") -> None:
        if isinstance(loader, type) or not hasattr(loader, "exec_module"):
            return

        run = loader.exec_module

        def exec_module(module: "ModuleType") -> None:
            vars(loader).pop("exec_module", None)
            try:
                run(module)
            except BaseException as error:
                from .frames import drop_own_frame

                drop_own_frame(error)
                raise
            try:
                self.on_imported(name, module)
            except Exception:
                pass

        # On this one object: it keeps its type, and is as before once it has run.
        loader.exec_module = exec_module

    def on_imported(self, name: str, module: "ModuleType") -> None:
        """`module` is there now: its parts are run, those of torch's own modules once torch is whole."""
        if name.startswith("torch.") and _TORCH in self.pending_parts:
            self._deferred_modules.append((name, module))
            return
        parts = self.pending_parts.pop(name, [])
        self._uninstall_when_done()
        for part, file, function in parts:
            _run_part(part, file, function, module)
        if name == _TORCH:
            late, self._deferred_modules = self._deferred_modules, []
            for later, its_module in late:
                self.on_imported(later, its_module)

    def _uninstall_when_done(self) -> None:
        if not self.pending_parts and self in sys.meta_path:
            sys.meta_path.remove(self)


def _run_part(part: str, file: str, function: str, module: "ModuleType") -> None:
    from . import session

    now = session.current()
    try:
        __import__(__package__ + "." + file)
        getattr(sys.modules[__package__ + "." + file], function)(module, now)
    except Exception as error:
        now.disable_part(part, error)


class _RankdeckFinder:
    """Finds a module of our name, and loads it."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        # The class of every spec: importlib.machinery would cost each Python of a run some milliseconds.
        make: Any = type(sys.__spec__)
        return make(name, self, origin=__file__) if name == _PACKAGE_NAME else None

    def create_module(self, spec: "Any") -> None:
        """As usual."""

    def exec_module(self, module: "ModuleType") -> None:
        from .log import log

        module.__doc__ = log.__doc__
        module.log = log  # type: ignore[attr-defined]


def install_finders() -> None:
    """Watch from now on; what has been imported already (by a .pth file) is taken up at once."""
    finder = _WatchedModuleFinder()
    sys.meta_path.insert(0, finder)
    sys.meta_path.append(_RankdeckFinder())
    for name in sorted(finder.pending_parts, key=len):
        if name in sys.modules:
            finder.on_imported(name, sys.modules[name])
