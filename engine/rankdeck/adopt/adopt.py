"""Builds the text of a configuration from a script's run, and lists what the user has to fill in.

    observation (events) + source (script)  ->  findings  ->  entries of tables  ->  TOML

See naming.py for what a configuration can refer to, and findings.py for how the model and data are found.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from rankdeck.adopt import findings, options, script_observation
from rankdeck.adopt.arguments import ScriptValues
from rankdeck.adopt.findings import ScriptFiles
from rankdeck.adopt.losses import find_loss
from rankdeck.adopt.naming import Finding, Namer
from rankdeck.adopt.script_observation import ScriptObservation
from rankdeck.adopt.source import ScriptSource
from rankdeck.adopt.toml_writer import TomlEntry, format_toml
from rankdeck.adopt.tracing import Origin, trace_origin
from rankdeck.base.errors import ConfigError, Problem
from rankdeck.base.phrases import phrase
from rankdeck.config import from_text
from rankdeck.config.catalog import STRATEGIES
from rankdeck.config.checks import PLACEHOLDER
from rankdeck.config.script import ScriptConfig
from rankdeck.run_dir import RunDir


@dataclass(frozen=True)
class AdoptedConfig:
    """A configuration's text, with the problems that `rankdeck validate` would report."""

    text: str
    problems: list[Problem]


def adopt(run: RunDir, folder: Path) -> AdoptedConfig:
    """Build a configuration that reproduces the observed training, to be saved as a file in `folder`.

    Raises:
        NotAdoptableError: no configuration can reproduce the training, or too little was observed.
        ConfigError: the run's files, or the script itself, cannot be read.
    """
    what = script_observation.read_observation(run)
    script = _read_script(run, what.script, folder)
    model_origin = findings.find_model_origin(script, _class_name(what.lead.optimizer))
    header = [*_header_lines(run, what), *unsupported_lines(script, model_origin)]
    text = format_toml(header, what.script.name.removesuffix(".py"), _tables(what, script, model_origin))
    try:
        # Validation finds what is left to fill in.
        from_text(text, folder=folder)
    except ConfigError as error:
        return AdoptedConfig(text, error.problems)
    return AdoptedConfig(text, [])


def default_file(run: RunDir, folder: Path) -> Path:
    """Return the path of the new configuration: train.toml for a run of train.py.

    Raises:
        NotAdoptableError: the run is not a run of a script.
    """
    script = script_observation.read_script(run)
    stem = script.script.run.rpartition(".")[2] if script.script.kind == "module" else script.script.run
    return folder / f"{Path(stem).stem}.toml"


def _read_script(run: RunDir, config: ScriptConfig, folder: Path) -> findings.ScriptFiles:
    """Read the script's file and the local files that it imports."""
    file = _script_file(config)
    is_module = config.script.kind == "module"
    source = None
    if file is not None:
        source = ScriptSource.read(file, Path(config.script.folder) if is_module else file.parent)
    if file is not None and source is None:
        raise ConfigError(
            phrase("{file}, the script of {run}, can no longer be read.", file=file, run=run.name),
            code="unreadable",
            path=str(file),
        )
    if source is None:
        raise script_observation.NotAdoptableError(
            phrase(
                "{run} runs {script}, whose Python file is unknown.", run=run.name, script=config.script.run
            ),
            advice=phrase("Run the script by its path: rankdeck run path/to/script.py"),
        )
    modules = {dotted.rpartition(".")[0] or dotted for dotted in source.imports.values()}
    local_sources = [
        other for module in sorted(modules) if (other := source.local_module(module)) is not None
    ]
    namer = Namer(ScriptValues(source, config.script.args), folder)
    return findings.ScriptFiles([source, *local_sources], namer)


def _script_file(config: ScriptConfig) -> Path | None:
    """Return the script's Python file; None for a program that is not Python."""
    table = config.script
    if table.kind == "module":
        stem = Path(table.folder, *table.run.split("."))
        # `python -m PACKAGE` runs the package's __main__.py.
        return stem / "__main__.py" if stem.is_dir() else stem.with_suffix(".py")
    file = Path(table.folder, table.run)
    return file if table.kind == "file" or file.suffix == ".py" else None


def _header_lines(run: RunDir, what: ScriptObservation) -> list[str]:
    return [
        f"Adopted from run {run.name} of {what.script.script.run}. Observed optimizer steps: {what.steps}.",
        "",
        "Values come from that run and from the script's source, which was read but not executed.",
        f'"{PLACEHOLDER}" marks values to fill in; rankdeck validate lists them.',
        "The script ran with this interpreter:",
        f"    {what.script.script.python}",
    ]


def _tables(
    what: ScriptObservation, script: findings.ScriptFiles, model_origin: Origin | None
) -> dict[str, list[TomlEntry]]:
    lead = what.lead
    data = findings.find_data(script, lead.dataset)
    loss, is_divided = find_loss(script, what.accumulate)
    strategy = options.find_strategy(what)
    card = STRATEGIES[strategy.value]
    sync = next(script.calls("convert_sync_batchnorm"), None)
    if sync is not None and "sync_batchnorm" in card.options.model_fields:
        strategy.args["sync_batchnorm"] = True
    model = findings.find_model(script, model_origin, _class_name(lead.model))
    return {
        "model": _named_entries(model),
        "data": [*_named_entries(data.use), *_loader_entries(what, data)],
        "loss": [_entry("use", loss)],
        "train": _train_entries(what, script, data, is_divided),
        "strategy": [
            _entry("use", strategy),
            *(TomlEntry(key, value) for key, value in strategy.args.items()),
        ],
        "devices": [_entry("use", options.find_devices(what, card.one_process))],
    }


def _class_name(name: str | None) -> str:
    return (name or "").rpartition(":")[2]


def _named_entries(finding: Finding) -> list[TomlEntry]:
    return [_entry("use", finding), *([TomlEntry("args", finding.args)] if finding.args else [])]


def _entry(key: str, finding: Finding) -> TomlEntry:
    return TomlEntry(key, finding.value, finding.notes)


def _loader_entries(what: ScriptObservation, data: findings.DataFinding) -> list[TomlEntry]:
    """Return the loader's entries: sample order, whether to keep a smaller last batch, and worker count."""
    entries = []
    if data.is_shuffled is False:
        entries.append(TomlEntry("order", "given", ["The loader does not shuffle."]))
    elif data.is_shuffled:
        note = "The script also shuffles, but with another generator, so the order and the losses differ."
        entries.append(TomlEntry("order", "shuffled", [note]))
    elif data.is_found:
        reason = (
            "the loader is called with **options"
            if data.has_unpacked_kwargs
            else "it depends on a sampler, or on a value of shuffle that could not be read"
        )
        notes = [
            f"The script's order is unknown: {reason}.",
            'Write "given" for the order of the data set, or "shuffled" for a new order in each epoch.',
        ]
        entries.append(TomlEntry("order", PLACEHOLDER, notes))
    samples, batch = what.lead.num_samples, _global_batch(what, data)
    # A sampler of the script may draw more or fewer samples than the data set has.
    is_whole = data.drops_last is False and data.is_shuffled is not None
    if is_whole and samples and batch and samples % batch:
        note = f"{samples} samples are not a multiple of {batch}, so the last batch of an epoch is smaller."
        entries.append(TomlEntry("last", "keep", [note]))
    workers = what.lead.loader_workers or data.num_workers
    if workers:
        entries.append(TomlEntry("workers", workers))
    return entries


def _global_batch(what: ScriptObservation, data: findings.DataFinding) -> int | None:
    """Return the number of samples per step, summed across all ranks; None if unknown."""
    batch = what.batch_size or data.batch_size
    return None if batch is None else batch * what.world_size * what.accumulate


def _train_entries(
    what: ScriptObservation, script: findings.ScriptFiles, data: findings.DataFinding, is_divided: bool
) -> list[TomlEntry]:
    batch, passes = _global_batch(what, data), what.accumulate
    factors = f"{what.batch_size or data.batch_size} samples"
    factors += f" x {what.world_size} ranks" if what.world_size > 1 else ""
    factors += f" x {passes} backward passes per step" if passes > 1 else ""
    sums = (
        f"The script runs {passes} backward passes per step and does not divide its loss.",
        f"Its gradients are sums, {passes} times as large as the means over the global batch used here.",
    )
    seed = options.find_seed(script)
    optimizer = options.find_optimizer(what, _user_class(what, script))
    optimizer_table = {"use": optimizer.value, **optimizer.args}
    entries = [
        TomlEntry("steps", what.steps, ["The number of steps observed in the run."]),
        TomlEntry(
            "global_batch",
            PLACEHOLDER if batch is None else batch,
            [f"{factors}." if batch else "The batch size was not found."],
        ),
    ]
    if passes > 1:
        entries.append(TomlEntry("accumulate", passes, [] if is_divided else list(sums)))
    if seed is None:
        entries.append(TomlEntry("seed", None, ["No torch seed was found in the script."]))
    else:
        note = (
            "Here, the model is built right after seeding. If the script draws random numbers in between, "
            "its initial weights differ."
        )
        entries.append(TomlEntry("seed", seed.value, [*seed.notes, note]))
    entries += [
        _entry("precision", options.find_precision(what)),
        TomlEntry("optimizer", optimizer_table, optimizer.notes),
    ]
    entries += _schedule_entries(what, script)
    if (clip := options.find_clip_norm(script)) is not None:
        entries.append(_entry("clip_norm", clip))
    if (compiled := options.find_compile(script)) is not None:
        entries.append(TomlEntry("compile", None, compiled.notes))
    return entries


def _schedule_entries(what: ScriptObservation, script: findings.ScriptFiles) -> list[TomlEntry]:
    """Return the entry for the observed learning rate schedule, with comments that list the script's
    schedulers; empty if the rate was constant and the script has no scheduler."""
    schedulers = options.find_schedulers(script)
    rate = options.find_schedule(what)
    if rate.value is None:
        lines = ["The learning rate was constant in all observed steps, but a scheduler may change it:"]
        return (
            [TomlEntry("schedule", None, [*lines, *(f"    {scheduler}" for scheduler in schedulers)])]
            if schedulers
            else []
        )
    table = rate.value if rate.value == PLACEHOLDER else {"use": rate.value, **rate.args}
    return [TomlEntry("schedule", table, [*rate.notes, *(f"    {scheduler}" for scheduler in schedulers)])]


def _user_class(what: ScriptObservation, script: findings.ScriptFiles) -> str | None:
    """Return a reference to the optimizer's class; None if it cannot be imported."""
    module, _, name = (what.lead.optimizer or "").rpartition(":")
    for source in script.sources:
        if name in source.definitions and source.training_statement is None:
            return f"{script.namer.file_reference(source)}:{name}"
    return f"{module}:{name}" if module and module != "__main__" else None


# Finds features of a script that a configuration does not cover, by the names in its text.


class _UnsupportedPattern(NamedTuple):
    """A pattern for names that reveal an unsupported feature. `message` names the feature and describes what
    a configuration does or offers instead.

    A name matches only where it is called or defined; if `anywhere` is True, any use of the name matches.
    """

    pattern: str
    message: str
    anywhere: bool = False


_UNSUPPORTED_PATTERNS = (
    _UnsupportedPattern(
        r"eval|evaluate|validate|validation_step",
        "evaluation. To evaluate here, return a pair (training, held-out) from the function in data.use and "
        "set train.evaluate_every.",
    ),
    _UnsupportedPattern(
        r"\w*patience|\w*([Ee]arly_?[Ss]top)\w*",
        "possible early stopping. Here, training always takes train.steps steps.",
        anywhere=True,
    ),
    _UnsupportedPattern(
        r"AveragedModel|ExponentialMovingAverage|\w*(EMA|Ema(?![a-z]))\w*|(\w+_)?ema(_\w+)?",
        "weight averaging. Here, the final weights are those of the last step.",
    ),
    _UnsupportedPattern(
        r"clip_grad_value_?", "gradient clipping by value. train.clip_norm clips only by norm."
    ),
    _UnsupportedPattern(
        r"load_state_dict", "loading of a state dict. Here, only the function in model.use can load weights."
    ),
    _UnsupportedPattern(
        r"(?i)mixup\w*|cutmix\w*",
        "mixup or cutmix. Here, a batch contains the samples as the data set returns them.",
    ),
)


def unsupported_lines(script: ScriptFiles, model: Origin | None) -> list[str]:
    """Return comment lines about features that a configuration does not cover; empty if there are none."""
    lines = [
        f"{location}: {habit.message}"
        for habit in _UNSUPPORTED_PATTERNS
        if (location := _first_location(script, habit)) is not None
    ]
    if (location := _frozen_weight_location(script)) is not None:
        lines.append(f"{location}: frozen weights. Here, the function in model.use must freeze them.")
    changed = None if model is None else _computed_model_input(script, model)
    if changed is not None:
        lines.append(
            f"{changed.location}: model input computed from the batch, {changed.text}. Here, the model "
            "receives the inputs as the data set returns them."
        )
    if not lines:
        return []
    return [
        "",
        "Features of the script that this configuration does not reproduce:",
        *(f"- {line}" for line in lines),
    ]


def _first_location(script: ScriptFiles, habit: _UnsupportedPattern) -> str | None:
    """Return the location of the first name that matches the pattern; None if no name matches."""
    pattern = re.compile(habit.pattern)
    for source in script.sources:
        nodes = [node for node, name in _named_nodes(source, habit.anywhere) if pattern.fullmatch(name)]
        if nodes:
            # ast.walk is breadth-first, so the first node is not always the first line.
            return source.location(min(nodes, key=lambda node: node.lineno))
    return None


def _named_nodes(source: ScriptSource, anywhere: bool) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Call):
            yield node, (source.dotted_name(node.func) or "").rpartition(".")[2]
        elif isinstance(node, ast.FunctionDef):
            yield node, node.name
        elif anywhere and isinstance(node, ast.Name):
            yield node, node.id
        elif anywhere and isinstance(node, ast.Attribute):
            yield node, node.attr


def _frozen_weight_location(script: ScriptFiles) -> str | None:
    """Return where the script first sets requires_grad to False; None if it does not."""
    for source in script.sources:
        for node in ast.walk(source.tree):
            value = None
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith(".requires_grad"):
                value = node.value
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith(".requires_grad_"):
                value = next(iter(node.args), None)
            if isinstance(value, ast.Constant) and value.value is False:
                return source.location(node)
    return None


def _computed_model_input(script: ScriptFiles, model: Origin) -> Origin | None:
    """Return the first model input that a training function computes; None if inputs are only moved to a
    device."""
    for source in script.sources:
        training = {id(source.scope_of(call)) for call in source.calls("backward")}
        for call in source.calls():
            if (
                id(source.scope_of(call)) not in training
                or trace_origin(source, call.func).node is not model.node
            ):
                continue
            for argument in call.args:
                origin = trace_origin(source, argument)
                is_method = isinstance(origin.node, ast.Call) and isinstance(origin.node.func, ast.Attribute)
                names = {node.id for node in ast.walk(origin.node) if isinstance(node, ast.Name)}
                is_computed = isinstance(origin.node, ast.BinOp) or (is_method and origin.index is None)
                # An expression of imported names alone, such as torch.zeros(8), is not computed from a batch.
                if is_computed and names - source.imports.keys():
                    return origin
    return None
