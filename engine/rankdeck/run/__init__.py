"""What a run's events say: the one fold of them into steps, devices, anatomy, problems; and its exports.

`rankdeck.run("train.py")` calls this very module: the name is a function of rankdeck's own for people, and a
room of the engine since before that. Calling it is calling api/runs.py's `run`.
"""

import importlib
import sys
import types
from typing import Any


class _CallableModule(types.ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return importlib.import_module("rankdeck.api.runs").run(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
