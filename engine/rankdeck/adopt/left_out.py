"""What a script does beside its steps, found in its text, that a configuration does not take over.

A table of names says what is looked for. Read adopt.py next.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

from rankdeck.adopt.findings import Script
from rankdeck.adopt.source import ScriptSource
from rankdeck.adopt.tracing import Origin, origin_of


class _Habit(NamedTuple):
    """Names that are called or defined, or with `anywhere` only mentioned, and what comes of them here."""

    pattern: str
    words: str
    anywhere: bool = False


_HABITS = (
    _Habit(
        r"eval|evaluate|validate|validation_step",
        "evaluates. Here held-out data is the second of a pair that the function of data.use returns, and "
        "train.evaluate_every says how often.",
    ),
    _Habit(
        r"\w*patience|\w*([Ee]arly_?[Ss]top)\w*",
        "may stop early. Here there are train.steps steps.",
        anywhere=True,
    ),
    _Habit(
        r"AveragedModel|ExponentialMovingAverage|\w*(EMA|Ema(?![a-z]))\w*|(\w+_)?ema(_\w+)?",
        "averages weights over steps. Here they are those of the last step.",
    ),
    _Habit(r"clip_grad_value_?", "clips each gradient by its value. Here none is."),
    _Habit(
        r"load_state_dict", "loads a state. Here nothing is loaded but by the function of model.use itself."
    ),
    _Habit(
        r"(?i)mixup\w*|cutmix\w*",
        "mixes samples of a batch. Here a batch is what the data set's samples are.",
    ),
)


def left_out(script: Script, model: Origin | None) -> list[str]:
    """Lines of a comment; none where nothing was found."""
    found = [f"{place} {habit.words}" for habit in _HABITS if (place := _first(script, habit)) is not None]
    if (place := _frozen(script)) is not None:
        found.append(f"{place} freezes weights. Here the function of model.use has to.")
    changed = None if model is None else _changed_batch(script, model)
    if changed is not None:
        found.append(
            f"{changed.place} makes the model's input of a batch: {changed.text}. Here it gets what the "
            "data set gives."
        )
    if not found:
        return []
    return ["", "What the text tells and a configuration does not take over:", *(f"- {one}" for one in found)]


def _first(script: Script, habit: _Habit) -> str | None:
    """Where the names first stand."""
    pattern = re.compile(habit.pattern)
    for source in script.sources:
        nodes = [node for node, name in _names(source, habit.anywhere) if pattern.fullmatch(name)]
        if nodes:
            return source.place(min(nodes, key=lambda node: node.lineno))
    return None


def _names(source: ScriptSource, anywhere: bool) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield node, (source.dotted(node.func) or "").rpartition(".")[2]
        elif isinstance(node, ast.FunctionDef):
            yield node, node.name
        elif anywhere and isinstance(node, ast.Name):
            yield node, node.id
        elif anywhere and isinstance(node, ast.Attribute):
            yield node, node.attr


def _frozen(script: Script) -> str | None:
    """Where a weight is set to have no gradient."""
    for source in script.sources:
        for node in ast.walk(source.tree):
            value = None
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(".requires_grad"):
                value = node.value
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".requires_grad_"):
                value = next(iter(node.args), None)
            if isinstance(value, ast.Constant) and value.value is False:
                return source.place(node)
    return None


def _changed_batch(script: Script, model: Origin) -> Origin | None:
    """What the model is given where a function goes backward, where that is computed and not just moved."""
    for source in script.sources:
        training = {id(source.scope_of(call)) for call in source.calls("backward")}
        for call in source.calls():
            if (
                id(source.scope_of(call)) not in training
                or origin_of(source, call.func).node is not model.node
            ):
                continue
            for given in call.args:
                made = origin_of(source, given)
                is_method = isinstance(made.node, ast.Call) and isinstance(made.node.func, ast.Attribute)
                names = {node.id for node in ast.walk(made.node) if isinstance(node, ast.Name)}
                is_computed = isinstance(made.node, ast.BinOp) or (is_method and made.index is None)
                if is_computed and names - source.imports.keys():
                    return made
    return None
