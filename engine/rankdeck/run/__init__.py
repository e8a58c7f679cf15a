"""Build a run's state from its events (steps, devices, anatomy, problems), and export it.

`rankdeck.run("train.py")` calls this module: the public function has the name of the package, which is older.
The call is passed to `run` in api/runs.py.
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
