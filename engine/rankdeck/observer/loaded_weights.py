"""Observes what was loaded into modules: keys that matched nothing, and weights replaced between steps.

Only what `load_state_dict` itself reports is used; no tensor is compared. Before the first step, a script may
call it again with other keys, so only the last call for each module counts. Read session.py first.
"""

from __future__ import annotations

import functools
import weakref

from .frames import drop_own_frame, script_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from .session import RankSession

PART = "loaded"


class LoadedWeights:
    """The calls of `load_state_dict` of this process."""

    def __init__(self, session: RankSession) -> None:
        self._session = session
        self._failed: list[tuple[Any, str, dict[str, Any]]] = []
        """(weak reference to the module, code, fields) of the calls that matched hardly any key."""

    def on_first_step(self, _: Any) -> None:
        """Report the modules for which `load_state_dict` matched hardly any key."""
        failed, self._failed = self._failed, []
        for module, code, fields in failed:
            if module() is not None:
                self._session.report_anomaly(code, **fields)

    def on_loaded(self, module: Any, state: Any, result: Any, strict: bool) -> None:
        """Handle a `load_state_dict` call with `state`; `result` is its missing and unexpected keys."""
        session = self._session
        if session.resume is not None and not session.step:
            session.resume.on_weights_loaded(module, state)
        # The digests of the weights show whether the ranks differ afterwards.
        if session.step and any(_contains(reference(), module) for reference in session.models):
            line = script_line()
            session.report_anomaly("weights-loaded", names=[line], line=line)
        self._failed = [failed for failed in self._failed if failed[0]() is not module]
        if strict or not hasattr(result, "unexpected_keys"):
            return
        file_keys = [key for key in state if isinstance(key, str)]
        unexpected = [key for key in result.unexpected_keys if key in state]
        missing = list(result.missing_keys)
        num_matched = len(file_keys) - len(unexpected)
        if not file_keys or not missing or not unexpected or 2 * num_matched > len(file_keys):
            return
        prefix, how = _find_prefix(unexpected, missing)
        if num_matched and not prefix:
            return  # A part of the file belongs to another module, as when a backbone is loaded.
        fields = {
            "names": [prefix, unexpected[0], missing[0]],
            "line": script_line(),
            "matched": num_matched,
            "given": len(file_keys),
            "wanted": num_matched + len(missing),
        }
        code = "nothing-loaded-" + how if prefix else "nothing-loaded"
        self._failed.append((weakref.ref(module), code, fields))
        if session.num_outermost_steps:
            self.on_first_step(None)


def _contains(model: Any, module: Any) -> bool:
    return model is not None and any(module is other for other in model.modules())


def _find_prefix(unexpected: list[str], missing: list[str]) -> tuple[str, str]:
    """Return (prefix, "with" or "without"): the file's keys have the prefix and the module's do not, or the
    other way round; ("", "") if no prefix explains most keys."""
    for ours, theirs, how in ((missing, unexpected, "with"), (unexpected, missing, "without")):
        our_keys = set(ours)
        for key in theirs:
            parts = key.split(".")
            for number in range(1, len(parts)):
                prefix = ".".join(parts[:number]) + "."
                if key[len(prefix) :] in our_keys:
                    num = sum(
                        other.startswith(prefix) and other[len(prefix) :] in our_keys for other in theirs
                    )
                    if 2 * num >= min(len(ours), len(theirs)):
                        return prefix, how
    return "", ""


def install(torch: Any, session: RankSession) -> None:
    """Wrap `Module.load_state_dict`."""
    module_class = torch.nn.Module
    load = module_class.load_state_dict
    loaded = LoadedWeights(session)
    on_loaded = session.wrap_part(PART, loaded.on_loaded)
    session.on_first_step.add(PART, loaded.on_first_step)

    @functools.wraps(load)
    def observed(self: Any, state_dict: Any, strict: bool = True, *args: Any, **kwargs: Any) -> Any:
        try:
            result = load(self, state_dict, strict, *args, **kwargs)
        except BaseException as error:
            drop_own_frame(error)
            raise
        on_loaded(self, state_dict, result, strict)
        return result

    module_class.load_state_dict = observed
