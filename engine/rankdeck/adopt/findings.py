"""Finds the calls that create a script's model and data, starting from its training code.

    model    the object whose parameters are passed to the optimizer
    data     the dataset that is passed to the training loader

Read tracing.py and naming.py first, losses.py and options.py next.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rankdeck.adopt.arguments import UNKNOWN
from rankdeck.adopt.naming import Finding, Namer
from rankdeck.adopt.source import ScriptSource
from rankdeck.adopt.tracing import PARALLEL_WRAPPERS, Origin, returned_origin, trace_origin
from rankdeck.config.checks import PLACEHOLDER

_HELD_OUT_WORDS = ("val", "valid", "validation", "test", "eval", "heldout", "dev")


@dataclass(frozen=True)
class ScriptFiles:
    """The script's file, followed by the local files that it imports."""

    sources: list[ScriptSource]
    namer: Namer

    def calls(self, *ends: str) -> Iterator[tuple[ScriptSource, ast.Call]]:
        for source in self.sources:
            for call in source.calls(*ends):
                yield source, call

    def evaluate(self, source: ScriptSource, node: ast.expr | None) -> Any:
        return UNKNOWN if node is None else self.namer.values.evaluate(source, node)


def call_argument(call: ast.Call, name: str, at: int | None = None) -> ast.expr | None:
    """Return an argument of a call, by name or by position `at`; None if the call does not pass it."""
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    return call.args[at] if at is not None and 0 <= at < len(call.args) else None


def has_unpacked_kwargs(call: ast.Call) -> bool:
    """Return whether the call unpacks a dictionary (`**options`), which may contain any argument."""
    return any(keyword.arg is None for keyword in call.keywords)


# The model.


def find_model_origin(script: ScriptFiles, optimizer: str) -> Origin | None:
    """Return the expression that creates the model; `optimizer` is the optimizer's observed class name."""
    owner = _owner_of_parameters(script, optimizer) or find_trainer_argument(script, "model", 0)
    return None if owner is None else _follow_return(trace_origin(*owner))


def find_model(script: ScriptFiles, origin: Origin | None, model: str) -> Finding:
    """Return the reference by which a configuration names the model. `origin` is the expression that creates
    the model, if found; `model` is the observed name of its class."""
    if origin is not None and isinstance(origin.node, ast.Call):
        return (
            _check_wrapped_model(origin)
            or _check_missing_forward(origin)
            or script.namer.name_call(origin, "build_model")
        )
    # The optimizer's argument does not lead to a call, so look for a call of the observed class.
    for source, call in script.calls(model):
        call_origin = Origin(source, call)
        return _check_missing_forward(call_origin) or script.namer.name_call(call_origin, "build_model")
    kind = f" ({model})" if model else ""
    return Finding(
        notes=[
            f"The call that creates the model{kind} was not found.",
            'Name a function that returns the model: "file.py:build_model".',
        ]
    )


def _check_wrapped_model(origin: Origin) -> Finding | None:
    """Return a finding that rejects a function that both creates and wraps the model, because in a
    configuration the strategy wraps the model."""
    call = origin.node
    assert isinstance(call, ast.Call)
    definition = origin.source.find_definition(origin.source.dotted_name(call.func) or "")
    if definition is None or isinstance(definition[1], ast.ClassDef):
        return None
    source, function = definition
    for node in ast.walk(function):
        name = (source.dotted_name(node.func) or "").rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if name in PARALLEL_WRAPPERS:
            return Finding(
                notes=[
                    f"{origin.location} creates the model with {origin.text}, which also wraps it "
                    f"({source.location(node)}).",
                    "Here, the strategy wraps the model: name a function that returns it unwrapped.",
                ]
            )
    return None


def _check_missing_forward(origin: Origin) -> Finding | None:
    """Return a finding that rejects a LightningModule without a forward method, whose loss is computed in
    training_step."""
    call = origin.node
    assert isinstance(call, ast.Call)
    definition = origin.source.find_definition(origin.source.dotted_name(call.func) or "")
    if definition is None or not isinstance(definition[1], ast.ClassDef):
        return None
    methods = {node.name for node in definition[1].body if isinstance(node, ast.FunctionDef)}
    if "training_step" not in methods or "forward" in methods:
        return None
    return Finding(
        notes=[
            f"{origin.location} creates the model with {origin.text}, which has a training_step but no "
            "forward.",
            "Here, the model is called with a batch's inputs: add a forward, or name a function that returns "
            'the module that training_step calls ("file.py:build_model").',
        ]
    )


def _follow_return(origin: Origin) -> Origin:
    """Return the expression for entry `origin.index` of the called function's result, or `origin` if that
    expression is unknown."""
    inner = returned_origin(origin) if origin.index is not None else None
    return origin if inner is None else inner


def _owner_of_parameters(script: ScriptFiles, optimizer: str) -> tuple[ScriptSource, ast.expr] | None:
    """Return the `x` of the `x.parameters()` passed to the optimizer or, failing that, to any other call."""
    # The observed class first; a function of the script may create the optimizer instead.
    calls = [*script.calls(optimizer), *script.calls()]
    for source, call in calls:
        for argument in [*call.args, *(keyword.value for keyword in call.keywords)]:
            for node in ast.walk(trace_origin(source, argument).node):
                named = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
                if named and node.func.attr in ("parameters", "named_parameters"):  # type: ignore[attr-defined]
                    return source, node.func.value  # type: ignore[attr-defined]
    return None


def find_trainer_argument(
    script: ScriptFiles, name: str, at: int | None = None
) -> tuple[ScriptSource, ast.expr] | None:
    """Return the argument `name`, or the one at position `at`, of the call that creates a transformers
    Trainer."""
    for source, call in script.calls("Trainer", "SFTTrainer"):
        argument = call_argument(call, name, at)
        if argument is not None:
            return source, argument
    return None


# The data.


@dataclass
class DataFinding:
    """The dataset and the options of its training loader; None means unknown.

    `is_found` is false if the script has no DataLoader and no Trainer dataset.
    """

    use: Finding
    is_shuffled: bool | None = None
    drops_last: bool | None = None
    batch_size: int | None = None
    num_workers: int | None = None
    is_found: bool = True
    has_unpacked_kwargs: bool = False
    """Whether the loader is called with `**options`, which may contain any option of the loader."""


def find_data(script: ScriptFiles, dataset: str | None) -> DataFinding:
    """Return the reference by which a configuration names the training data, with the options of the training
    loader; `dataset` is the observed class of the data."""
    loader = _find_training_loader(script)
    of_trainer = find_trainer_argument(script, "train_dataset")
    if loader is None and of_trainer is not None:
        # transformers' Trainer shuffles by default.
        return DataFinding(_find_dataset(script, trace_origin(*of_trainer)), is_shuffled=True)
    if loader is None:
        kind = f" ({dataset.rpartition(':')[2]})" if dataset else ""
        notes = [
            f"No DataLoader was found in the script's source. Write a function that returns the training "
            f"data{kind}: a data set of (inputs, targets) samples, or a pair (training, held-out).",
            "Put it into a file that does not train when imported, and name it here: "
            '"file.py:training_data".',
        ]
        return DataFinding(Finding(notes=notes), is_found=False)
    source, call = loader
    argument = call_argument(call, "dataset", 0)
    use = Finding() if argument is None else _find_dataset(script, trace_origin(source, argument))
    collate = call_argument(call, "collate_fn")
    if collate is not None:
        use.notes.append(
            f"The loader's collate_fn ({ast.unparse(collate)}) is not used here. If default_collate cannot "
            "build a batch, give the data set a method read_batch(indices) that returns a whole batch."
        )
    return DataFinding(
        use,
        _is_shuffled(script, source, call),
        _bool_or(
            script.evaluate(source, call_argument(call, "drop_last", 8)),
            default=None if has_unpacked_kwargs(call) else False,
        ),
        int_or_none(script.evaluate(source, call_argument(call, "batch_size", 1))),
        int_or_none(script.evaluate(source, call_argument(call, "num_workers"))),
        has_unpacked_kwargs=has_unpacked_kwargs(call),
    )


def _find_training_loader(script: ScriptFiles) -> tuple[ScriptSource, ast.Call] | None:
    loaders = list(script.calls("DataLoader"))
    return min(loaders, key=lambda loader: _held_out_score(script, *loader), default=None)


def _held_out_score(script: ScriptFiles, source: ScriptSource, call: ast.Call) -> int:
    """Return 0 for a training loader, 2 for a held-out loader and 1 for any other, judging by variable
    names."""
    argument = call_argument(call, "dataset", 0)
    names = "" if argument is None else ast.unparse(argument).lower()
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Assign) and any(inner is call for inner in ast.walk(node.value)):
            names += " " + " ".join(ast.unparse(target).lower() for target in node.targets)
    if "train" in names:
        return 0
    return 2 if any(word in names for word in _HELD_OUT_WORDS) else 1


def _find_dataset(script: ScriptFiles, origin: Origin) -> Finding:
    """Return a reference to the callable that returns either the dataset or a pair whose first item is the
    dataset."""
    call, entered = origin.node, _follow_return(origin)
    if isinstance(call, ast.Call):
        dotted = origin.source.dotted_name(call.func) or ""
        defined = origin.source.find_definition(dotted)
        lengths = _returned_lengths(defined[1]) if defined is not None else set()
        is_pair = origin.index == 0 and lengths == {2}
        if is_pair or (origin.index is None and not lengths):
            finding = script.namer.name_call(Origin(origin.source, call), "training_data")
            if is_pair and finding.value != PLACEHOLDER:
                finding.notes.append("It returns a pair, whose second entry is used as the held-out data.")
            return finding
        if entered is not origin:
            return _find_dataset(script, entered)
    return script.namer.suggest_factory(origin, "training_data")


def _returned_lengths(definition: ast.AST) -> set[int]:
    """Return the lengths of the tuples that a function returns; empty if it returns no tuple."""
    if isinstance(definition, ast.ClassDef):
        return set()
    returns = [node.value for node in ast.walk(definition) if isinstance(node, ast.Return)]
    return {len(value.elts) for value in returns if isinstance(value, ast.Tuple)}


def _is_shuffled(script: ScriptFiles, source: ScriptSource, call: ast.Call) -> bool | None:
    """Return whether the loader or its sampler shuffles; None if unknown, as for a custom sampler."""
    # Positions are those of DataLoader's parameters.
    sampler = call_argument(call, "sampler", 3)
    # Only a literal None evaluates to None; a sampler's value is UNKNOWN.
    if sampler is not None and script.evaluate(source, sampler) is not None:
        origin = trace_origin(source, sampler)
        # As in `DistributedSampler(data) if distributed else None`.
        if isinstance(origin.node, ast.IfExp):
            origin = trace_origin(origin.source, origin.node.body)
        if not isinstance(origin.node, ast.Call):
            return None
        kind = (origin.source.dotted_name(origin.node.func) or "").rpartition(".")[2]
        if kind == "DistributedSampler":
            return _bool_or(
                script.evaluate(origin.source, call_argument(origin.node, "shuffle", 3)), default=True
            )
        if origin.node.keywords:  # drawn with replacement, or only a subset
            return None
        return {"SequentialSampler": False, "RandomSampler": True}.get(kind)
    if call_argument(call, "batch_sampler", 4) is not None:
        return None
    shuffle = call_argument(call, "shuffle", 2)
    if shuffle is None and has_unpacked_kwargs(call):
        return None
    return False if shuffle is None else _bool_or(script.evaluate(source, shuffle), default=None)


def _bool_or(value: Any, default: bool | None) -> bool | None:
    return value if isinstance(value, bool) else default


def int_or_none(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
