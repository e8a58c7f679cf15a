"""RunConfig: TOML <-> a validated model of one run.

A person's file may be short: everything has a default. `load` reports every problem of a file at once, each
with its path, its line and what to write instead. `RunConfig.to_toml` writes the resolved copy that a run
keeps: all defaults spelled out, paths absolute, enough to run it again alone. Options of a card (a model, a
strategy) are validated by the card in catalog.py.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

import tomlkit
from pydantic import BaseModel, ConfigDict, Field

from rankdeck import mesh_sizes, microbatches
from rankdeck.capabilities import Facts, refusals
from rankdeck.catalog import STRATEGIES, StrategyCard
from rankdeck.config_checks import CARDS, Findings, choice, find_card
from rankdeck.devices import DeviceSelection, parse_devices
from rankdeck.errors import ConfigError, DeviceError, Problem, did_you_mean, one_of
from rankdeck.toml_lines import Place, key_lines
from rankdeck.units import parse_bytes

Count = Annotated[int, Field(ge=0, lt=2**53)]
AtLeastOne = Annotated[int, Field(ge=1, lt=2**53)]  # what JSON and a double still count exactly


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Choice(_Table):
    """A card by name with its options beside it: `{ use = "adamw", lr = 3e-4 }`."""

    use: str
    options: dict[str, Any] = Field(default_factory=dict)


class ModelConfig(_Table):
    use: str = Field(
        "mlp",
        description='A catalogue name, or your own "package.module:factory" or "path/to/file.py:factory".',
    )
    args: dict[str, Any] = Field(default_factory=dict)


class DataConfig(_Table):
    use: str = Field("digits", description='digits, text, images, synthetic, or your own "module:factory".')
    args: dict[str, Any] = Field(default_factory=dict)
    workers: Annotated[int, Field(ge=0, le=64)] = Field(0, description="DataLoader workers per rank.")
    pin_memory: bool = Field(True, description="Page-locked batches, on GPUs.")


class LossConfig(_Table):
    use: str = Field("cross_entropy", description='cross_entropy, mse, model, or your own "module:function".')


class TrainConfig(_Table):
    steps: AtLeastOne | None = Field(
        None, description="Optimizer steps; 500 where neither steps nor epochs is given."
    )
    epochs: AtLeastOne | None = Field(None, description="Passes over the training data, instead of steps.")
    global_batch: AtLeastOne = Field(
        32, description="Samples that one optimizer step sees, on all devices together."
    )
    accumulate: AtLeastOne = Field(
        1, description="Parts that the global batch is cut into, one after another."
    )
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    precision: Literal["fp32", "fp64", "bf16", "fp16"] = "fp32"
    optimizer: Choice = Choice(use="adamw")
    schedule: Choice = Choice(use="constant")
    clip_norm: Annotated[float, Field(ge=0)] = Field(
        0.0, description="Largest norm of all gradients together; 0 is off."
    )
    activation_checkpointing: bool = Field(
        False, description="Recompute activations in backward: less memory, more time."
    )
    compile: bool = False
    checkpoint_every: Count = Field(0, description="Steps between checkpoints; 0 is off.")
    keep_checkpoints: AtLeastOne = 3
    evaluate_every: Count = Field(
        100, description="Steps between evaluations; 0 is off. A last evaluation always runs."
    )


class DevicesConfig(_Table):
    use: str = Field("auto", description="auto, cpu:4, gpu:all, gpu:0,2 or gpu:GPU-<uuid>.")


class RehearsalConfig(_Table):
    pace: Literal["real", "simulated"] = Field(
        "real", description="simulated: each virtual device takes the time that its FLOPs need, in its shape."
    )
    device_gflops: Annotated[float, Field(gt=0)] | None = Field(
        None, description="How fast a virtual device pretends to be; chosen so that it holds by default."
    )
    capacity: str | None = Field(
        None, description='The size that virtual devices pretend to have, as in "24GiB".'
    )


class LaunchConfig(_Table):
    timeout_s: Annotated[float, Field(gt=0, le=1e6)] = Field(
        60.0, description="Longest wait in a collective, after warm-up."
    )
    max_restarts: Count = Field(
        0, description="How often a run goes on by itself after a rank failed, from its newest checkpoint."
    )


class RunConfig(_Table):
    """One run, whole and validated. Make it with `load` or `from_dict`, never by hand."""

    name: str = Field("", description="What the run is called; from the file's name where it is not given.")
    folder: str | None = Field(
        None, description="Where relative paths start and your own modules are looked for."
    )
    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    loss: LossConfig = LossConfig()
    train: TrainConfig = TrainConfig()
    strategy: Choice = Choice(use="single")
    devices: DevicesConfig = DevicesConfig()
    rehearsal: RehearsalConfig = RehearsalConfig()
    launch: LaunchConfig = LaunchConfig()

    @property
    def selection(self) -> DeviceSelection:
        return parse_devices(self.devices.use)

    @property
    def strategy_card(self) -> StrategyCard:
        return STRATEGIES[self.strategy.use]

    @property
    def capacity_bytes(self) -> int | None:
        return None if self.rehearsal.capacity is None else parse_bytes(self.rehearsal.capacity)

    def code_folders(self) -> list[Path]:
        """Folders whose Python code this run imports, resolved;

        empty for a catalogue run. Trust is asked for these.
        """
        folders: list[Path] = []
        base = Path(self.folder or ".")
        for use in (self.model.use, self.data.use, self.loss.use, self.train.optimizer.use):
            module, colon, _ = use.rpartition(":")
            if colon:
                folder = (base / module).parent if module.endswith(".py") else base
                folder = folder.resolve()
                if folder not in folders:
                    folders.append(folder)
        return folders

    def to_dict(self) -> dict[str, Any]:
        """The tables as a person writes them: options of a choice beside its `use`, nothing that is None."""
        tables = self.model_dump(exclude_none=True)
        train = tables["train"]
        train["optimizer"] = _beside(train["optimizer"])
        train["schedule"] = _beside(train["schedule"])
        tables["strategy"] = _beside(tables["strategy"])
        return tables

    def to_toml(self) -> str:
        return tomlkit.dumps(self.to_dict())


def _beside(choice: dict[str, Any]) -> dict[str, Any]:
    return {"use": choice["use"], **choice["options"]}


_SECTIONS: dict[str, type[_Table]] = {
    "model": ModelConfig,
    "data": DataConfig,
    "loss": LossConfig,
    "train": TrainConfig,
    "devices": DevicesConfig,
    "rehearsal": RehearsalConfig,
    "launch": LaunchConfig,
}
_TOP_LEVEL = ("name", "folder", *_SECTIONS, "strategy")
_LATER = "Leave it out: it is not there yet."


def load(
    path: Path,
    *,
    strategy: str | None = None,
    devices: str | None = None,
    name: str | None = None,
    overrides: Iterable[str] = (),
    folder: Path | None = None,
) -> RunConfig:
    """The configuration in a file, with the command line's changes applied: first `strategy` (which replaces
    the whole table), then `devices`, then every "train.steps=50" of `overrides`. Relative paths start in
    `folder`, by default the file's own.

    Raises:
        ConfigError: every problem of the file and of the changes, with path, line and advice.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ConfigError(f"{path} cannot be read: {reason}.", code="unreadable", path=str(path)) from None
    try:
        return from_text(
            text,
            folder=folder or path.resolve().parent,
            stem=path.stem,
            strategy=strategy,
            devices=devices,
            name=name,
            overrides=overrides,
        )
    except ConfigError as error:
        error.file = str(path)
        raise


def from_text(
    text: str,
    *,
    folder: Path,
    stem: str = "run",
    strategy: str | None = None,
    devices: str | None = None,
    name: str | None = None,
    overrides: Iterable[str] = (),
) -> RunConfig:
    """As `load`, for text that is not in a file yet (the app's editor)."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"This is not TOML: {error}.",
            code="toml",
            line=_toml_error_line(str(error), text),
            advice="Mend that line.",
        ) from None
    lines = key_lines(text)
    given = {
        "strategy": None if strategy is None else {"use": strategy},
        "devices": None if devices is None else {"use": devices},
        "name": name,
    }
    for key, value in given.items():
        if value is not None:
            tables[key] = value
            _not_in_file(lines, (key,))
    problems = []
    for override in overrides:
        place = _override_place(override)
        if problem := _apply_override(tables, override):
            problems.append(problem)
        else:
            _not_in_file(lines, place)
    return from_dict(tables, folder=folder, stem=stem, lines=lines, problems=problems)


def _override_place(override: str) -> Place:
    return tuple(part.strip() for part in override.partition("=")[0].split("."))


def _not_in_file(lines: dict[Place, int | None], place: Place) -> None:
    """The command line gave this: no line of the file may be blamed for it."""
    for inside in [known for known in lines if known[: len(place)] == place]:
        del lines[inside]
    lines[place] = None


def from_dict(
    tables: dict[str, Any],
    *,
    folder: Path,
    stem: str = "run",
    lines: dict[Place, int | None] | None = None,
    problems: list[Problem] | None = None,
) -> RunConfig:
    """The configuration in nested tables as `to_dict` gives them.

    Raises:
        ConfigError: every problem at once.
    """
    found = Findings(lines or {}, problems or [])
    raw_folder = tables.get("folder")
    base = Path(raw_folder) if isinstance(raw_folder, str) else folder
    values: dict[str, Any] = {"folder": str(base.resolve())}
    for key in tables:
        if key not in _TOP_LEVEL:
            found.add(
                "unknown-option",
                (key,),
                f"{key} is not a table of a configuration.",
                did_you_mean(key, _TOP_LEVEL) or f"Known: {one_of(_TOP_LEVEL)}.",
            )
    raw_name = tables.get("name", stem)
    if isinstance(raw_name, str):
        values["name"] = raw_name.strip() or stem
    else:
        found.add("wrong-type", ("name",), "name must be text in quotes.", 'Write name = "my run".')
    if raw_folder is not None and not isinstance(raw_folder, str):
        found.add("wrong-type", ("folder",), "folder must be text in quotes.", 'Write folder = "path".')
    for section in _SECTIONS:
        values[section] = _section(found, section, tables.get(section, {}))
    values["strategy"] = _choice(found, ("strategy",), tables.get("strategy", {}), "single")
    if all(values[key] is not None for key in ("train", "strategy", "devices")):
        _check_together(found, values)
    if found.problems:
        problems = sorted(found.problems, key=lambda problem: problem.line or 0)
        raise ConfigError(problems[0].message, problems=problems)
    return RunConfig(**_absolute_paths(values, base))


def _section(found: Findings, section: str, values: Any) -> Any:
    """One table, validated with the choices or the card's args inside it; None when it has a problem."""
    table_type = _SECTIONS[section]
    if not isinstance(values, dict):
        return found.validate(table_type, (section,), values)
    values = dict(values)
    before = len(found.problems)
    if section == "train":
        for key, default in (("optimizer", "adamw"), ("schedule", "constant")):
            values[key] = _choice(found, (section, key), values.get(key, {}), default) or Choice(use=default)
    table: Any = found.validate(table_type, (section,), values)
    if table is None:
        return None
    if section in ("model", "data", "loss"):
        table = _card_table(found, section, table)
    elif section in _TABLE_RULES:
        _TABLE_RULES[section](found, table)
    return None if len(found.problems) > before else table


def _choice(found: Findings, place: Place, values: Any, default: str) -> Choice | None:
    chosen = choice(found, place, values, default)
    return None if chosen is None else Choice(use=chosen[0], options=chosen[1])


def _card_table(found: Findings, section: str, table: Any) -> Any:
    """The catalogue's own options checked and completed; a person's own factory gets its args as they are."""
    what, cards = CARDS[(section,)]
    if ":" in table.use:
        return table
    card = find_card(found, (section,), what, cards, table.use)
    if card is None or section == "loss":
        return card and table
    args = found.validate(card.options, (section, "args"), table.args, owner=f"{what} {table.use}")
    return (
        None
        if args is None
        else table.model_copy(update={"args": args.model_dump(exclude_none=True, mode="json")})
    )


def _apply_override(tables: dict[str, Any], override: str) -> Problem | None:
    """One "--set key=value" applied to the tables. A value that is not TOML is taken as text."""
    key, equals, raw = override.partition("=")
    parts = _override_place(override)
    if not equals or not all(parts):
        return Problem(
            "override", f'--set "{override}" is not key=value.', advice="Write it as --set train.steps=50."
        )
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        value = raw.strip()
    table = tables
    for part in parts[:-1]:
        inner = table.get(part)
        if inner is None or isinstance(inner, str):
            inner = {} if inner is None else {"use": inner}
            table[part] = inner
        if not isinstance(inner, dict):
            return Problem(
                "override",
                f'--set "{override}": {part} is not a table.',
                path=key,
                advice=f"Set {part} itself, or leave it out.",
            )
        table = inner
    table[parts[-1]] = value
    if parts in (("train", "steps"), ("train", "epochs")):
        table.pop("epochs" if parts[-1] == "steps" else "steps", None)
    return None


def _absolute_paths(values: dict[str, Any], base: Path) -> dict[str, Any]:
    """Paths in args made absolute, and "path/to/file.py:factory" too: the resolved copy runs alone."""
    for section in ("model", "data", "loss"):
        table = values[section]
        update: dict[str, Any] = {"use": _absolute_code(table.use, base)}
        args = getattr(table, "args", {})
        path = args.get("path")
        if isinstance(path, str) and not path.startswith("@"):
            update["args"] = {**args, "path": str((base / Path(path).expanduser()).resolve())}
        values[section] = table.model_copy(update=update)
    return values


def _absolute_code(use: str, base: Path) -> str:
    module, colon, attribute = use.rpartition(":")
    if colon and module.endswith(".py"):
        return f"{(base / Path(module).expanduser()).resolve()}:{attribute}"
    return use


def _check_train(found: Findings, train: TrainConfig) -> None:
    if train.steps is not None and train.epochs is not None:
        found.add(
            "both-given",
            ("train", "epochs"),
            "train.steps and train.epochs are both given.",
            "Keep one of them.",
        )


def _check_devices(found: Findings, devices: DevicesConfig) -> None:
    try:
        parse_devices(devices.use)
    except DeviceError as error:
        found.add("device", ("devices", "use"), error.message, error.advice)


def _check_rehearsal(found: Findings, rehearsal: RehearsalConfig) -> None:
    if rehearsal.device_gflops is not None and rehearsal.pace == "real":
        found.add(
            "does-not-combine",
            ("rehearsal", "device_gflops"),
            "rehearsal.device_gflops is the rate of a simulated pace, and the pace is real.",
            'Add pace = "simulated", or leave it out.',
        )
    try:
        parse_bytes(rehearsal.capacity or 0)
    except ValueError as error:
        found.add(
            "wrong-value", ("rehearsal", "capacity"), f"rehearsal.capacity: {error}.", 'Write it as "24GiB".'
        )


_TABLE_RULES: dict[str, Callable[[Findings, Any], None]] = {
    "train": _check_train,
    "devices": _check_devices,
    "rehearsal": _check_rehearsal,
}


def _check_together(found: Findings, values: dict[str, Any]) -> None:
    """What one table alone cannot tell."""
    selection = parse_devices(values["devices"].use)
    _check_on(found, values, None if selection.kind == "auto" else selection.kind, selection.known_count)


def on_devices(config: RunConfig, kind: str, num_devices: int) -> RunConfig:
    """The configuration on the devices (cpu | gpu) that it has got: only the launch knows them where it names
    none.

    Raises:
        ConfigError: something in it does not go with them.
    """
    found = Findings({}, [])
    values = {name: getattr(config, name) for name in ("model", "train", "strategy", "rehearsal")}
    _check_on(found, values, kind, num_devices)
    if found.problems:
        raise ConfigError(found.problems[0].message, problems=found.problems)
    return config.model_copy(update={"strategy": values["strategy"]})


def _check_on(found: Findings, values: dict[str, Any], kind: str | None, num_devices: int | None) -> None:
    """What does not go together on such devices; None for what is not known yet."""
    train: TrainConfig = values["train"]
    if num_devices is not None:
        values["strategy"] = _with_mesh(values["strategy"], num_devices)
    for row in refusals(_facts(values, kind, num_devices)):
        found.add("does-not-combine", tuple(row.place.split(".")), row.why, row.instead)
    if kind == "gpu" and train.precision == "fp64":
        advice = "Use fp32, or cpu:N for a rehearsal."
        found.add(
            "precision", ("train", "precision"), "train.precision = fp64 is for rehearsals on CPU.", advice
        )
    if kind == "gpu" and values["rehearsal"] and values["rehearsal"].pace == "simulated":
        message = "rehearsal.pace = simulated is for virtual devices, and devices.use asks for GPUs."
        advice = 'Use pace = "real", or devices.use = "cpu:4".'
        found.add("does-not-combine", ("rehearsal", "pace"), message, advice)
    if num_devices is not None:
        for problem in batch_problems(train, values["strategy"], num_devices):
            found.add(problem.code, tuple((problem.path or "").split(".")), problem.message, problem.advice)


def _with_mesh(strategy: Choice, num_devices: int) -> Choice:
    """A hybrid whose axes nobody gave gets a mesh to begin with."""
    if strategy.use != "hybrid" or math.prod(mesh_sizes.sizes_of(strategy.options).values()) > 1:
        return strategy
    return Choice(use=strategy.use, options={**strategy.options, **mesh_sizes.usual_sizes(num_devices)})


def _facts(values: dict[str, Any], kind: str | None, num_devices: int | None) -> Facts:
    train, model = values["train"], values["model"]
    return Facts(
        strategy=values["strategy"].use,
        options=values["strategy"].options,
        model=model.use if model else "",
        model_args=model.args if model else {},
        accumulate=train.accumulate,
        precision=train.precision,
        clip_norm=train.clip_norm,
        activation_checkpointing=train.activation_checkpointing,
        compile=train.compile,
        device_kind=kind,
        num_devices=num_devices,
    )


def batch_problems(train: TrainConfig, strategy: Choice, num_devices: int) -> list[Problem]:
    """Whether the global batch can be cut by accumulate, the devices and the stages; empty when it can."""
    card = STRATEGIES[strategy.use]
    if num_devices < card.min_devices:
        return [
            Problem(
                "too-few-devices",
                f"strategy.use = {card.name} needs {card.min_devices} devices; there is {num_devices}.",
                path="devices.use",
                advice=f'Use cpu:{card.min_devices} for a rehearsal, or strategy.use = "single".',
            )
        ]
    is_mesh = card.name == "hybrid"
    if is_mesh and (found := mesh_sizes.problem(strategy.options, num_devices)):
        return [found]
    shards = num_devices if card.batch_shards else 1
    cut_by = f"{shards} devices"
    if is_mesh:
        shards = mesh_sizes.batch_slices(strategy.options)
        cut_by = f"data x shard {shards}"
    parts = train.accumulate * shards
    if train.global_batch % parts == 0:
        return _stage_problems(train, strategy, num_devices)
    below = train.global_batch // parts * parts
    choices = [str(below)] if below else []
    choices.append(str(below + parts))
    return [
        Problem(
            "batch",
            f"train.global_batch = {train.global_batch} does not divide into {parts} equal parts "
            f"(train.accumulate {train.accumulate} x {cut_by}).",
            path="train.global_batch",
            advice=f"Use {one_of(choices)}.",
        )
    ]


def _stage_problems(train: TrainConfig, strategy: Choice, num_devices: int) -> list[Problem]:
    """Whether a pipeline can be fed: microbatches that fit its schedule, parts enough for two versions."""
    options = strategy.options
    if strategy.use == "pipeline":
        schedule, wanted = options["schedule"], options.get("microbatches")
        found = microbatches.problem(schedule, num_devices, train.global_batch, train.accumulate, wanted)
        return [] if found is None else [found]
    if strategy.use == "hybrid" and options["stage"] > 1:
        per_pipeline = train.global_batch // mesh_sizes.batch_slices(options)
        schedule, wanted = options["schedule"], options.get("microbatches")
        found = microbatches.problem(schedule, options["stage"], per_pipeline, train.accumulate, wanted)
        return [] if found is None else [found]
    if strategy.use == "pipeline-async":
        found = microbatches.async_problem(options["mode"], num_devices, train.accumulate)
        return [] if found is None else [found]
    return []


def _toml_error_line(message: str, text: str) -> int | None:
    _, found, rest = message.rpartition("(at line ")
    if found:
        return int(rest.split(",")[0])
    return len(text.splitlines()) if "end of document" in message else None
