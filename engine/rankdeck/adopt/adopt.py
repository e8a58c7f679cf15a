"""A run of a script as the text of a configuration, and what is left to fill in.

    seen (events) + source (text)  ->  findings  ->  entries of tables  ->  TOML

Read naming.py for what can be named, findings.py for how it is found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rankdeck.adopt import findings, options, seen
from rankdeck.adopt.arguments import ScriptValues
from rankdeck.adopt.findings import Script
from rankdeck.adopt.losses import find_loss
from rankdeck.adopt.naming import Finding, Namer
from rankdeck.adopt.seen import SeenScript
from rankdeck.adopt.source import ScriptSource
from rankdeck.adopt.tracing import Origin, origin_of
from rankdeck.adopt.writing import Entry, toml_of
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import phrase
from rankdeck.config import from_text
from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.checks import FILL_IN
from rankdeck.config.script import ScriptConfig
from rankdeck.rundir import RunDir


@dataclass(frozen=True)
class Adopted:
    """A configuration's text. `problems` is what it still lacks, as `rankdeck validate` would say it."""

    text: str
    problems: list[Problem]


def adopt(run: RunDir, folder: Path) -> Adopted:
    """The configuration of what the run was seen to do, for a file that will lie in `folder`.

    Raises:
        NotAdoptableError: no configuration can do the same, or too little was seen.
        ConfigError: the run's files, or the script itself, cannot be read.
    """
    what = seen.read(run)
    script = _read_script(run, what.script, folder)
    made = findings.model_origin(script, _class(what.lead.optimizer))
    head = [*_head(run, what), *left_out(script, made)]
    text = toml_of(head, what.script.name.removesuffix(".py"), _tables(what, script, made))
    try:
        from_text(text, folder=folder)
    except ConfigError as error:
        return Adopted(text, error.problems)
    return Adopted(text, [])


def default_file(run: RunDir, folder: Path) -> Path:
    """train.toml for a run of train.py.

    Raises:
        NotAdoptableError: it is no run of a script.
    """
    script = seen.script_of(run)
    stem = script.script.run.rpartition(".")[2] if script.script.kind == "module" else script.script.run
    return folder / f"{Path(stem).stem}.toml"


def _read_script(run: RunDir, config: ScriptConfig, folder: Path) -> findings.Script:
    """The script's file and those beside it that it imports."""
    file = _script_file(config)
    is_module = config.script.kind == "module"
    source = None
    if file is not None:
        source = ScriptSource.read(file, Path(config.script.folder) if is_module else file.parent)
    if file is not None and source is None:
        raise ConfigError(
            phrase("{file}, the script of {run}, cannot be read any more.", file=file, run=run.name),
            code="unreadable",
            path=str(file),
        )
    if source is None:
        raise seen.NotAdoptableError(
            phrase(
                "{run} runs {script}, whose Python file is not known.", run=run.name, script=config.script.run
            ),
            advice=phrase("Name the script itself: rankdeck run path/to/script.py"),
        )
    modules = {dotted.rpartition(".")[0] or dotted for dotted in source.imports.values()}
    beside = [other for module in sorted(modules) if (other := source.beside(module)) is not None]
    namer = Namer(ScriptValues(source, config.script.args), folder)
    return findings.Script([source, *beside], namer)


def _script_file(config: ScriptConfig) -> Path | None:
    """The script's Python file; None for a program that is none."""
    table = config.script
    if table.kind == "module":
        stem = Path(table.folder, *table.run.split("."))
        return stem / "__main__.py" if stem.is_dir() else stem.with_suffix(".py")
    file = Path(table.folder, table.run)
    return file if table.kind == "file" or file.suffix == ".py" else None


def _head(run: RunDir, what: SeenScript) -> list[str]:
    words = [
        f"What {what.script.script.run} did in the run {run.name}: {what.steps} steps were seen.",
        "",
        "Values come from that run and from the script's text, which was read and not executed.",
        f'What neither tells is "{FILL_IN}": rankdeck validate says what is left.',
    ]
    return [*words, "The script's own interpreter was", f"    {what.script.script.python}"]


def _tables(what: SeenScript, script: findings.Script, made: Origin | None) -> dict[str, list[Entry]]:
    lead = what.lead
    data = findings.find_data(script, lead.dataset)
    loss, is_divided = find_loss(script, what.accumulate)
    strategy = options.strategy(what)
    card = STRATEGIES[strategy.value]
    sync = next(script.calls("convert_sync_batchnorm"), None)
    if sync is not None and "sync_batchnorm" in card.options.model_fields:
        strategy.args["sync_batchnorm"] = True
    model = findings.find_model(script, made, _class(lead.model))
    return {
        "model": _named(model),
        "data": [*_named(data.use), *_reading(what, data)],
        "loss": [_entry("use", loss)],
        "train": _train(what, script, data, is_divided),
        "strategy": [
            _entry("use", strategy),
            *(Entry(key, value) for key, value in strategy.args.items()),
        ],
        "devices": [_entry("use", options.devices(what, card.one_process))],
    }


def _class(name: str | None) -> str:
    return (name or "").rpartition(":")[2]


def _named(found: Finding) -> list[Entry]:
    return [_entry("use", found), *([Entry("args", found.args)] if found.args else [])]


def _entry(key: str, found: Finding) -> Entry:
    return Entry(key, found.value, found.notes)


def _reading(what: SeenScript, data: findings.DataFinding) -> list[Entry]:
    """How the loader reads: order, the end of an epoch, workers."""
    entries = []
    if data.shuffles is False:
        entries.append(Entry("order", "given", ["The loader does not shuffle."]))
    elif data.shuffles:
        note = "The script shuffles too, by another generator: the order is other, and so is each loss."
        entries.append(Entry("order", "shuffled", [note]))
    elif data.is_found:
        decides = (
            "Options that the text does not tell decide"
            if data.is_open
            else "A sampler of the script's own decides"
        )
        note = (
            f'{decides} on the order: "given" is the data set\'s own, "shuffled" another one in each epoch.'
        )
        entries.append(Entry("order", FILL_IN, [note]))
    samples, batch = what.lead.num_samples, _global_batch(what, data)
    is_whole = data.drops_last is False and data.shuffles is not None
    if is_whole and samples and batch and samples % batch:
        note = f"{samples} samples are no multiple of {batch}: the loader's last batch is shorter."
        entries.append(Entry("last", "keep", [note]))
    workers = what.lead.loader_workers or data.workers
    if workers:
        entries.append(Entry("workers", workers))
    return entries


def _global_batch(what: SeenScript, data: findings.DataFinding) -> int | None:
    """Samples of one step of all ranks together."""
    batch = what.batch or data.batch
    return None if batch is None else batch * what.world_size * what.accumulate


def _train(
    what: SeenScript, script: findings.Script, data: findings.DataFinding, is_divided: bool
) -> list[Entry]:
    batch, parts = _global_batch(what, data), what.accumulate
    factors = f"{what.batch or data.batch} samples"
    factors += f" x {what.world_size} ranks" if what.world_size > 1 else ""
    factors += f" x {parts} backwards in a step" if parts > 1 else ""
    sums = (
        f"The script goes backward {parts} times in a step and does not divide its loss: its gradients are",
        f"sums, {parts} times as large as here, where they are means over the global batch.",
    )
    seed = options.find_seed(script)
    optimizer = options.optimizer(what, _own_class(what, script))
    optimizer_table = {"use": optimizer.value, **optimizer.args}
    entries = [
        Entry("steps", what.steps, ["As many as were seen."]),
        Entry(
            "global_batch",
            FILL_IN if batch is None else batch,
            [f"{factors}." if batch else "No loader told."],
        ),
    ]
    if parts > 1:
        entries.append(Entry("accumulate", parts, [] if is_divided else list(sums)))
    if seed is None:
        entries.append(Entry("seed", None, ["The script sets no seed that its text tells."]))
    else:
        note = (
            "Here the model is made right after seeding: draws of the script in between give other weights."
        )
        entries.append(Entry("seed", seed.value, [*seed.notes, note]))
    entries += [
        _entry("precision", options.precision(what)),
        Entry("optimizer", optimizer_table, optimizer.notes),
    ]
    entries += _schedule(what, script)
    if (clip := options.find_clip_norm(script)) is not None:
        entries.append(_entry("clip_norm", clip))
    if (compiled := options.find_compile(script)) is not None:
        entries.append(Entry("compile", None, compiled.notes))
    return entries


def _schedule(what: SeenScript, script: findings.Script) -> list[Entry]:
    """What the rate was seen to follow, and what of the script moves it."""
    made = options.schedulers(script)
    rate = options.schedule(what)
    if rate.value is None:
        words = ["The rate was the same in all steps that were seen, but the script may move it:"]
        return [Entry("schedule", None, [*words, *(f"    {one}" for one in made)])] if made else []
    table = rate.value if rate.value == FILL_IN else {"use": rate.value, **rate.args}
    return [Entry("schedule", table, [*rate.notes, *(f"    {one}" for one in made)])]


def _own_class(what: SeenScript, script: findings.Script) -> str | None:
    """The optimizer's class where the person wrote it themselves."""
    module, _, name = (what.lead.optimizer or "").rpartition(":")
    for source in script.sources:
        if name in source.definitions and source.trains_at_import is None:
            return f"{script.namer.file(source)}:{name}"
    return f"{module}:{name}" if module and module != "__main__" else None


# What a script does beside its steps, found in its text, that a configuration does not take over.
#
# A table of names says what is looked for.


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
