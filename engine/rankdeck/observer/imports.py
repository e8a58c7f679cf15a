"""Runs each part right after the import of the module that it observes, and makes `import rankdeck` work.

A finder at the front of sys.meta_path asks the other finders and returns their spec. The spec's loader
executes the module as usual, and then the parts run. The finder removes itself once it has no modules left to
watch. A second finder, at the end of sys.meta_path so that the script's own modules take precedence, provides
a rankdeck module with `log` if no package called rankdeck is installed. This file imports little, and never
torch, because every Python process of a run executes it. Read parts.py first, session.py next.
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
        """Return the spec from the other finders, with the loader wrapped if the module is watched."""
        # Per thread, so that another thread's search for the same module is not cut short.
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
        # The loader of built-in and frozen modules is a class that all of them share.
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

        # Set on the instance, so that the loader keeps its type; removed again when it runs.
        loader.exec_module = exec_module

    def on_imported(self, name: str, module: "ModuleType") -> None:
        """Run the parts of an imported module; the parts of torch's submodules wait until torch itself is
        imported."""
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
    """Finds and loads a module called rankdeck."""

    def find_spec(self, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        # ModuleSpec, without importing importlib.machinery: that would cost each Python of a run some
        # milliseconds.
        make: Any = type(sys.__spec__)
        return make(name, self, origin=__file__) if name == _PACKAGE_NAME else None

    def create_module(self, spec: "Any") -> None:
        """Use the default module creation."""

    def exec_module(self, module: "ModuleType") -> None:
        from .log import log

        module.__doc__ = log.__doc__
        module.log = log  # type: ignore[attr-defined]


def install_finders() -> None:
    """Install the finders, and handle modules that have already been imported (by a .pth file)."""
    finder = _WatchedModuleFinder()
    sys.meta_path.insert(0, finder)
    sys.meta_path.append(_RankdeckFinder())
    # torch comes before its submodules, whose parts wait for it.
    for name in sorted(finder.pending_parts, key=len):
        if name in sys.modules:
            finder.on_imported(name, sys.modules[name])
