"""Load the user's own model, data, loss or optimizer, named as "module:name" or "path/to/file.py:name".

Modules are searched for in the configuration's folder, which comes right after the standard library on
sys.path: a user's `queue.py` hides nothing that Python needs, and a user's `datasets.py` precedes an
installed package of that name. An exception in the user's code becomes an error with the exception's type,
its text, and the file and line of the last frame in that code; our own frames are left out.
"""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn, utils
from torch.optim import Optimizer

from rankdeck.base.errors import ConfigError, DataError, ModelError, RankdeckError, did_you_mean
from rankdeck.base.phrases import phrase, tr_noop
from rankdeck.config.consent import refuse_main
from rankdeck.data.base import SampleSet
from rankdeck.diagnose.exceptions import error_text, user_location
from rankdeck.torch_compat.fake_tensors import active_fake_mode

ErrorClass = type[RankdeckError]


def is_user_code(use: str) -> bool:
    """Check whether `use` names the user's code rather than an entry of the catalogue."""
    return ":" in use


def build_model(target: str, args: Mapping[str, Any], folder: Path) -> nn.Module:
    """Return the model that the factory `target` makes from `args`.

    Raises: ModelError if the factory does not exist, raises, or returns something other than a model.
    """
    model = _call_factory(target, args, folder, "model", ModelError)
    if not isinstance(model, nn.Module):
        raise ModelError(
            phrase(
                "model.use = {target!r} returned {kind}, not an nn.Module.",
                target=target,
                kind=_with_article(model),
            ),
            path="model.use",
            advice=phrase("Let the factory return the model itself."),
        )
    return model


def build_data(target: str, args: Mapping[str, Any], folder: Path) -> tuple[SampleSet, SampleSet | None]:
    """Return the data sets (train, heldout or None) that the factory `target` makes from `args`; a single
    data set is used as `train`.

    Raises: DataError if the factory does not exist, raises, or returns something other than data sets.
    """
    pair = _call_factory(target, args, folder, "data", DataError)
    if _is_single_dataset(pair):
        pair = (pair, None)
    if _is_stream(pair):
        raise DataError(
            phrase(
                "data.use = {target!r} returned {kind}, a stream, which Rankdeck cannot split among devices.",
                target=target,
                kind=_with_article(pair),
            ),
            path="data.use",
            advice=phrase(
                "Return a dataset with __len__ and __getitem__(index); instead of a "
                "DataLoader, return its dataset."
            ),
        )
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(
            phrase(
                "data.use = {target!r} returned {kind}, not a pair (train, heldout).",
                target=target,
                kind=_with_article(pair),
            ),
            path="data.use",
            advice=phrase("Return a dataset, or two datasets: (train, heldout)."),
        )
    train, heldout = pair
    _check_samples(train, target, "train")
    if heldout is not None:
        _check_samples(heldout, target, "heldout")
    return train, heldout


def build_loss(target: str, folder: Path) -> Callable[..., Any]:
    """Return the loss function that `target` names, `(outputs, targets) -> (sum, count)`.

    Raises: ConfigError if it does not exist or is not callable.
    """
    return _find_callable(target, folder, "loss", ConfigError)


def build_optimizer_class(target: str, folder: Path) -> Callable[..., Optimizer]:
    """Return the subclass of torch's Optimizer that `target` names.

    Raises: ConfigError if it does not exist or is not a subclass of Optimizer.
    """
    optimizer_class = _find_callable(target, folder, "train.optimizer", ConfigError)
    if not (inspect.isclass(optimizer_class) and issubclass(optimizer_class, Optimizer)):
        raise ConfigError(
            phrase(
                "train.optimizer.use = {target!r} is {kind}, not a subclass of torch.optim.Optimizer.",
                target=target,
                kind=_with_article(optimizer_class),
            ),
            path="train.optimizer.use",
            advice=phrase("Specify the class itself, not an instance or a function."),
        )
    return optimizer_class


def _call_factory(
    target: str, args: Mapping[str, Any], folder: Path, section: str, error_class: ErrorClass
) -> Any:
    factory = _find_callable(target, folder, section, error_class)
    _check_args(factory, target, args, section, error_class)
    try:
        return factory(**args)
    except (Exception, SystemExit) as error:
        raise user_error(error, f"{section}.use", target, error_class) from error


def _find_callable(target: str, folder: Path, section: str, error_class: ErrorClass) -> Callable[..., Any]:
    """Return the callable that `target` names. Raises: `error_class`."""
    key = f"{section}.use"
    source, _, name = target.rpartition(":")
    if not source or not name.isidentifier():
        raise error_class(
            phrase(
                "{key} = {target!r} is neither in the catalogue nor in the form module:name.",
                key=key,
                target=target,
            ),
            path=key,
            advice=phrase('Write "package.module:name" or "path/to/file.py:name".'),
        )
    refuse_main(target, key, error_class)
    module = _import_module(source, target, folder, key, error_class)
    try:
        value = getattr(module, name)
    except AttributeError:
        raise _missing_name_error(module, source, name, key, error_class) from None
    if not callable(value):
        raise error_class(
            phrase(
                "{key} = {target!r} is {kind}, which is not callable.",
                key=key,
                target=target,
                kind=_with_article(value),
            ),
            path=key,
            advice=phrase("Specify a function or a class."),
        )
    callable_found: Callable[..., Any] = value
    return callable_found


def _import_module(source: str, target: str, folder: Path, key: str, error_class: ErrorClass) -> ModuleType:
    _add_to_path(folder)
    try:
        return _import_file(source, folder) if source.endswith(".py") else importlib.import_module(source)
    except FileNotFoundError as error:
        file = folder / source
        # The module file exists, so its own code raised the error.
        if file.exists():
            raise user_error(error, key, target, error_class, is_import=True) from error
        raise error_class(
            phrase("{key} = {target!r}: there is no file {file}.", key=key, target=target, file=file),
            path=key,
            advice=_suggest_file(source, folder)
            or phrase("Specify the path relative to the configuration's folder."),
        ) from None
    except ModuleNotFoundError as error:
        if error.name is None or not (source + ".").startswith(error.name + "."):
            raise user_error(error, key, target, error_class, is_import=True) from error
        raise error_class(
            phrase(
                "{key} = {target!r}: module {module!r} is neither in {folder} nor installed.",
                key=key,
                target=target,
                module=error.name,
                folder=folder,
            ),
            path=key,
            advice=_suggest_file(source, folder)
            or phrase(
                'Write "path/to/file.py:{name}", or install the package.', name=target.rpartition(":")[2]
            ),
        ) from None
    except (Exception, SystemExit) as error:
        raise user_error(error, key, target, error_class, is_import=True) from error


def _import_file(source: str, folder: Path) -> ModuleType:
    """Import a file as a module with a unique name.

    The file's folder is added to sys.path, so that the file can import its siblings.
    """
    file = (folder / source).resolve()
    if not file.is_file():
        raise FileNotFoundError(source)
    # The path's hash tells files of one name apart.
    name = f"rankdeck_user_{hashlib.blake2b(os.fsencode(file), digest_size=4).hexdigest()}_{file.stem}"
    if name in sys.modules:
        return sys.modules[name]
    _add_to_path(file.parent)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Before the module runs, as importlib does: dataclasses look their module up there.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        # As importlib does, or a second import would find the unfinished module.
        del sys.modules[name]
        raise
    return module


def _add_to_path(folder: Path) -> None:
    """Put a folder on sys.path right after the standard library, unless it is there already."""
    entry = str(folder.resolve())
    if entry in sys.path:
        return
    paths = sysconfig.get_paths()
    library = {paths["stdlib"], paths["platstdlib"], str(Path(paths["platstdlib"], "lib-dynload"))}
    last = max((index for index, path in enumerate(sys.path) if path in library), default=len(sys.path) - 1)
    sys.path.insert(last + 1, entry)
    importlib.invalidate_caches()


def _missing_name_error(
    module: ModuleType, source: str, name: str, key: str, error_class: ErrorClass
) -> RankdeckError:
    if source.partition(".")[0] in sys.stdlib_module_names:
        advice: str = phrase(
            "{place} is a module of Python's standard library. For your own file, write "
            '"{place}.py:{name}".',
            place=source,
            name=name,
        )
    elif public := [word for word in vars(module) if word[0] != "_"]:
        advice = did_you_mean(name, public) or phrase(
            "It defines {names}.", names=", ".join(sorted(public)[:12])
        )
    else:
        advice = phrase("It defines no public names.")
    return error_class(
        phrase("{key}: {place} has no {name!r}.", key=key, place=source, name=name), path=key, advice=advice
    )


def _check_args(
    factory: Callable[..., Any], target: str, args: Mapping[str, Any], section: str, error_class: ErrorClass
) -> None:
    """Refuse arguments that the factory does not take, before its code runs. Raises: `error_class`."""
    try:
        signature = inspect.signature(factory)
    # Some built-in callables have no signature.
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**args)
    except TypeError as error:
        unknown = [name for name in args if name not in signature.parameters]
        hint = did_you_mean(unknown[0], signature.parameters) if unknown else None
        taken = ", ".join(str(parameter) for parameter in signature.parameters.values())
        takes = phrase("It takes {taken}.", taken=taken) if taken else phrase("It takes no arguments.")
        raise error_class(
            phrase(
                "{section}.args do not match the parameters of {target!r}: {error}.",
                section=section,
                target=target,
                error=error,
            ),
            path=f"{section}.args",
            advice=phrase("{did_you_mean} {takes}", did_you_mean=hint, takes=takes) if hint else takes,
        ) from None


_RAISED = tr_noop("{key} = {target!r} raised {error}")
_RAISED_AT = tr_noop("{key} = {target!r} raised {error} ({file}, line {line})")
_IMPORT_RAISED = tr_noop("{key} = {target!r}: the import raised {error}")
_IMPORT_RAISED_AT = tr_noop("{key} = {target!r}: the import raised {error} ({file}, line {line})")


def user_error(
    error: BaseException, key: str, target: str, error_class: ErrorClass, *, is_import: bool = False
) -> RankdeckError:
    """Return an error for an exception in the user's code, with the file and line of the last frame in that
    code.

    If the exception is one of our own errors that passed through that code (for example, from a catalogue
    model called with bad arguments), return it unchanged.
    """
    if isinstance(error, RankdeckError):
        return error
    file: str | None
    line: int | None
    # The traceback of a syntax error has no frame in the file with the error.
    if isinstance(error, SyntaxError) and error.filename:
        file, line, text = error.filename, error.lineno, error.msg
    else:
        file, line = user_location(error)
        text = error_text(error)
    if file:
        template = _IMPORT_RAISED_AT if is_import else _RAISED_AT
    else:
        template = _IMPORT_RAISED if is_import else _RAISED
    error_message = f"{type(error).__name__}: {text}" if text else type(error).__name__
    advice = phrase("Fix the code there, then start again.")
    if active_fake_mode() is not None:
        advice = phrase(
            "A plan builds models with fake tensors, which not all code supports. A run may "
            "still be able to build this model."
        )
    return error_class(
        phrase(template, key=key, target=target, error=error_message, file=file, line=line),
        path=file,
        line=line,
        advice=advice if file else None,
    )


def _suggest_file(source: str, folder: Path) -> str | None:
    """Return a hint that names the file the user probably meant."""
    file_name = source if source.endswith(".py") else source.replace(".", "/") + ".py"
    try:
        candidates = [
            str(file.relative_to(folder)) for pattern in ("*.py", "*/*.py") for file in folder.glob(pattern)
        ]
    except OSError:
        return None
    close = difflib.get_close_matches(file_name, candidates, n=1, cutoff=0.6)
    if not close:
        return None
    suggestion = close[0] if source.endswith(".py") else close[0][:-3].replace("/", ".")
    return phrase('Did you mean "{word}"?', word=suggestion)


def _is_stream(value: Any) -> bool:
    """Check whether data yields samples or batches in its own order (IterableDataset, DataLoader)."""
    return isinstance(value, utils.data.IterableDataset | utils.data.DataLoader)


def _is_single_dataset(returned: object) -> bool:
    collections = (tuple, list, Mapping, str)
    return not isinstance(returned, collections) and not _missing_methods(returned)


def _missing_methods(dataset: object) -> list[str]:
    return [name for name in ("__len__", "__getitem__") if not hasattr(dataset, name)]


_MISSING_METHOD = tr_noop("data.use = {target!r}: {part} is {kind}, which has no {missing}.")
_MISSING_BOTH_METHODS = tr_noop(
    "data.use = {target!r}: {part} is {kind}, which has neither __len__ nor __getitem__."
)


def _check_samples(dataset: object, target: str, split: str) -> None:
    if missing := _missing_methods(dataset):
        template = _MISSING_METHOD if len(missing) == 1 else _MISSING_BOTH_METHODS
        raise DataError(
            phrase(template, target=target, part=split, kind=_with_article(dataset), missing=missing[0]),
            path="data.use",
            advice=phrase("Return map-style datasets, which support len(dataset) and dataset[i]."),
        )
    if len(dataset) == 0:  # type: ignore[arg-type]  # it has a length, as just checked
        raise DataError(
            phrase("data.use = {target!r}: {part} is empty.", target=target, part=split),
            path="data.use",
            advice=phrase("Return at least one sample."),
        )


def _with_article(value: object) -> str:
    if value is None:
        return "None"
    name = type(value).__name__
    return phrase("an {kind}", kind=name) if name[0].lower() in "aeiou" else phrase("a {kind}", kind=name)
