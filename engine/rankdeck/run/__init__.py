"""Build a run's state from its events (steps, devices, anatomy, problems), and export it.

Calling this module, as in `rankdeck.run("train.py")`, calls `run` in api/runs.py, because that public
function was added later under the name of this package.
"""

import importlib
import sys
import types
from typing import Any


# A function `rankdeck.run` would be replaced by this package whenever a submodule such as
# rankdeck.run.run_state is imported, so the package itself is callable.
class _CallableModule(types.ModuleType):
    def __call__(self, *args: Any, **options: Any) -> Any:
        return importlib.import_module("rankdeck.api.runs").run(*args, **options)


sys.modules[__name__].__class__ = _CallableModule
