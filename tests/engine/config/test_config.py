"""A configuration: short files grow whole, and every mistake is told at once with its place and a way out."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rankdeck.base.errors import ConfigError, Problem
from rankdeck.config import RunConfig, batch_problems, from_dict, from_text, load, presets

HERE = Path("/somewhere")


def problems_of(text: str, *overrides: str, strategy: str | None = None) -> list[Problem]:
    with pytest.raises(ConfigError) as caught:
        from_text(textwrap.dedent(text), folder=HERE, overrides=overrides, strategy=strategy)
    return caught.value.problems


def config_of(text: str = "", *overrides: str, **changes: str) -> RunConfig:
    return from_text(textwrap.dedent(text), folder=HERE, overrides=overrides, **changes)


def test_five_mistakes_get_five_messages_with_line_and_advice() -> None:
    text = """\
    [model]
    use = "gtp"

    [train]
    step = 50
    global_batch = "many"
    precision = "fp31"

    [strategy]
    use = "ddp"
    parallel_loss = true
    """
    problems = [(item.line, item.path, item.advice) for item in problems_of(text)]
    assert problems == [
        (2, "model.use", 'Did you mean "gpt"? For your own code, write "module:name".'),
        (5, "train.step", 'Did you mean "steps"?'),
        (6, "train.global_batch", "Write a whole number, as in 32."),
        (7, "train.precision", 'Did you mean "fp32"? Use fp32, fp64, bf16 or fp16.'),
        (11, "strategy.parallel_loss", "Leave it out, or set strategy.use to dp."),
    ]


@pytest.mark.parametrize(
    ("text", "code", "path", "advice"),
    [
        ("launc = 1", "unknown-option", "launc", 'Did you mean "launch"'),
        ("script.run = 'a.py'", "unknown-option", "script", "rankdeck adopt"),
        ("name = 5", "wrong-type", "name", "my run"),
        ("folder = 5", "wrong-type", "folder", "path"),
        ('model = "mlp"', "wrong-type", "model", "[model]"),
        ("[train]\noptimizer = 5", "wrong-type", "train.optimizer", "use ="),
        ("[train]\noptimizer = { use = 5 }", "wrong-type", "train.optimizer.use", "Use sgd"),
        ("[train]\nbatch_size = 8", "unknown-option", "train.batch_size", '"train.global_batch"'),
        ("[train]\nlr = 0.1", "unknown-option", "train.lr", 'Did you mean "train.optimizer.lr"'),
        ("[train]\nsteps = 0", "wrong-value", "train.steps", "at least 1"),
        ("[train]\nsteps = 10000000000000000000000", "wrong-value", "train.steps", "less than"),
        ("[launch]\ntimeout_s = 1e300", "wrong-value", "launch.timeout_s", "at most"),
        ("[model]\nargs = { hidden = [99999999999999] }", "wrong-value", "model.args.hidden.0", "less than"),
        ("[train]\nsteps = 1.5", "wrong-value", "train.steps", "whole number"),
        ("[train]\nsteps = [1]", "wrong-value", "train.steps", "whole number"),
        ("[train]\nclip_norm = nan", "wrong-value", "train.clip_norm", "number"),
        (
            "[train]\nactivation_checkpointing = 7",
            "wrong-value",
            "train.activation_checkpointing",
            "true or false",
        ),
        ("[data]\nworkers = 65", "wrong-value", "data.workers", "at most 64"),
        ("[launch]\ntimeout_s = 0", "wrong-value", "launch.timeout_s", "greater than 0"),
        ("[model]\nargs = { hidden = 5 }", "wrong-value", "model.args.hidden", "list"),
        ("[model]\nargs = { dropout = 1 }", "wrong-value", "model.args.dropout", "less than 1"),
        (
            '[model]\nuse = "resnet"\nargs = { depth = 20 }',
            "wrong-value",
            "model.args.depth",
            "18, 34, 50 or 101",
        ),
        ('[data]\nuse = "images"', "missing", "data.args.path", "Add path"),
        ('[data]\nuse = "digits"\nargs = { path = "a" }', "unknown-option", "data.args.path", "no options"),
        ('[loss]\nuse = "hinge"', "unknown-choice", "loss.use", "cross_entropy, mse or model"),
        ('[train]\nschedule = { use = "cosin" }', "unknown-choice", "train.schedule.use", "cosine"),
        (
            '[train]\noptimizer = { use = "sgd", lr = -1 }',
            "wrong-value",
            "train.optimizer.lr",
            "greater than 0",
        ),
        ('[train]\noptimizer = { use = "sgd", eps = 1 }', "foreign-option", "train.optimizer.eps", "adamw"),
        ("[train]\nsteps = 5\nepochs = 5", "both-given", "train.epochs", "Keep only one"),
        (
            '[train]\nprecision = "fp16"\n[devices]\nuse = "cpu:1"',
            "does-not-combine",
            "train.precision",
            "bf16",
        ),
        (
            '[rehearsal]\npace = "simulated"\n[devices]\nuse = "gpu:0"',
            "does-not-combine",
            "rehearsal.pace",
            "cpu:4",
        ),
        ("[rehearsal]\ndevice_gflops = 1", "does-not-combine", "rehearsal.device_gflops", "simulated"),
        ('[rehearsal]\ncapacity = "big"', "wrong-value", "rehearsal.capacity", "24GiB"),
        ('[devices]\nuse = "tpu:8"', "device", "devices.use", "cpu:N"),
        ('[strategy]\nuse = "dpp"', "unknown-choice", "strategy.use", 'Did you mean "dp"'),
        (
            '[train]\nprecision = "fp64"\n[devices]\nuse = "gpu:all"',
            "precision",
            "train.precision",
            "cpu:N",
        ),
        (
            '[train]\nglobal_batch = 10\n[strategy]\nuse = "ddp"\n[devices]\nuse = "cpu:4"',
            "batch",
            "train.global_batch",
            "Use 8 or 12.",
        ),
        *(
            (
                f'[train]\nglobal_batch = 16\n[strategy]\nuse = "pipeline"\nschedule = "{schedule}"\n'
                f'microbatches = {number}\n[devices]\nuse = "cpu:4"',
                "microbatches",
                "strategy.microbatches",
                choices,
            )
            for schedule, number, choices in (
                ("1f1b", 2, "Use 4, 8 or 16."),
                ("dualpipev", 4, "Use 8 or 16."),
                ("gpipe", 3, "Use 1, 2, 4, 8 or 16."),
            )
        ),
    ],
)
def test_every_mistake_has_its_code_path_and_advice(text: str, code: str, path: str, advice: str) -> None:
    (problem,) = problems_of(text)
    assert (problem.code, problem.path) == (code, path)
    assert problem.advice is not None and advice in problem.advice
    assert problem.line is not None or "name" not in text


def test_invalid_toml_is_refused_with_its_line() -> None:
    (problem,) = problems_of('[train]\nsteps = 5\nname = "open\n')
    assert (problem.code, problem.line) == ("toml", 3)
    (at_end,) = problems_of("[train]\nsteps =")
    assert at_end.line == 2


@pytest.mark.parametrize(
    ("override", "message"),
    [("train.steps", "not key=value"), ("=5", "not key=value"), ("train.seed.x=1", "is not a table")],
)
def test_an_invalid_override_is_refused(override: str, message: str) -> None:
    (problem,) = problems_of("[train]\nseed = 1\n", override)
    assert problem.code == "override" and message in problem.message and problem.advice


def test_a_command_line_mistake_has_no_line_number() -> None:
    text = "[train]\nsteps = 50\n[strategy]\nuse = 'ddp'\n"
    (problem,) = problems_of(text, "train.steps=many")
    assert (problem.path, problem.line) == ("train.steps", None)
    (problem,) = problems_of(text, strategy="dpp")
    assert (problem.path, problem.line) == ("strategy.use", None)


def test_overrides_set_any_option_without_quotes() -> None:
    config = config_of(
        "[train]\nepochs = 3\n",
        "train.steps=7",
        "train.optimizer.lr=0.5",
        "model.args.hidden=[8, 8]",
        "devices.use=cpu:3",
        "name=a b",
    )
    assert (config.train.steps, config.train.epochs) == (7, None)
    assert config.train.optimizer.options["lr"] == 0.5
    assert config.model.args["hidden"] == [8, 8]
    assert config.selection.count == 3
    assert config.name == "a b"


def test_strategy_option_replaces_the_table_before_overrides_apply() -> None:
    text = '[strategy]\nuse = "dp"\nparallel_loss = true\n'
    config = config_of(text, "strategy.bucket_mb=5", strategy="ddp")
    assert config.strategy.use == "ddp"
    assert config.strategy.options["bucket_mb"] == 5
    assert "parallel_loss" not in config.strategy.options


def test_an_empty_file_is_a_complete_configuration() -> None:
    config = config_of("")
    assert (config.model.use, config.data.use, config.strategy.use, config.devices.use) == (
        "mlp",
        "digits",
        "single",
        "auto",
    )
    assert config.name == "run"


@pytest.mark.parametrize("card", presets.list_presets(), ids=lambda card: card.name)
def test_the_resolved_copy_loads_to_the_same_configuration(card: presets.Preset, tmp_path: Path) -> None:
    config = load(card.path)
    copy = tmp_path / "elsewhere" / "config.toml"
    copy.parent.mkdir()
    copy.write_text(config.to_toml(), encoding="utf-8")
    assert load(copy) == config
    assert from_dict(config.to_dict(), folder=tmp_path) == config


def test_relative_paths_resolve_against_the_configuration_folder(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('[model]\nuse = "net.py:make"\n[data]\nuse = "text"\nargs = { path = "books" }\n')
    config = load(file)
    assert config.model.use == f"{tmp_path.resolve() / 'net.py'}:make"
    assert config.data.args["path"] == str(tmp_path.resolve() / "books")
    assert config.name == "mine"
    assert load(file, folder=tmp_path / "a").data.args["path"] == str(tmp_path.resolve() / "a" / "books")


def test_the_stdlib_data_path_is_not_resolved() -> None:
    assert config_of('[data]\nuse = "text"\n').data.args["path"] == "@stdlib"


def test_code_folders_are_those_of_user_code_only(tmp_path: Path) -> None:
    assert config_of("").code_folders() == []
    text = f'[model]\nuse = "{tmp_path}/nets/net.py:make"\n[data]\nuse = "mine.data:make"\n'
    assert config_of(text).code_folders() == [(tmp_path / "nets").resolve(), HERE.resolve()]


def test_a_file_that_cannot_be_read_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file") as caught:
        load(tmp_path / "none.toml")
    assert caught.value.exit_code == 2
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(ConfigError, match="UTF-8"):
        load(tmp_path / "latin.toml")


def test_a_byte_order_mark_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "marked.toml"
    file.write_bytes(b"\xef\xbb\xbf[train]\nsteps = 3\n")
    assert load(file).train.steps == 3


def test_a_config_error_knows_its_file(tmp_path: Path) -> None:
    file = tmp_path / "bad.toml"
    file.write_text("[train]\nstep = 1\n")
    with pytest.raises(ConfigError) as caught:
        load(file)
    assert caught.value.file == str(file)


def test_an_uneven_global_batch_is_refused_with_the_nearest_ones() -> None:
    config = config_of('[train]\nglobal_batch = 32\naccumulate = 3\n[strategy]\nuse = "ddp"\n')
    (problem,) = batch_problems(config.train, config.strategy, 4)
    assert problem.advice == "Use 24 or 36."
    assert batch_problems(config.train, config_of("").strategy, 4)[0].advice == "Use 30 or 33."


def test_placeholders_are_reported_with_their_lines() -> None:
    text = """\
    [model]
    use = "?"
    args = { width = "?" }

    [train]
    global_batch = "?"

    [strategy]
    use = "ddp"

    [devices]
    use = "cpu:3"
    """
    problems = [(item.code, item.path, item.line) for item in problems_of(text)]
    assert problems == [
        ("fill-in", "model.use", 2),
        ("fill-in", "model.args.width", 3),
        ("fill-in", "train.global_batch", 6),
    ]


def test_a_plan_loads_what_only_the_chosen_strategy_refuses() -> None:
    strategy = 'strategy = { use = "ddp", bucket_mb = 5 }'
    text = f'train = {{ global_batch = 33 }}\ndevices = {{ use = "cpu:2" }}\n{strategy}'
    with pytest.raises(ConfigError, match="does not divide"):
        from_text(text, folder=Path.cwd())
    config = from_text(text, folder=Path.cwd(), to_plan=True)
    assert (config.strategy.use, config.strategy.options) == (
        "ddp",
        from_text(strategy, folder=Path.cwd()).strategy.options,
    )
    assert from_text(config.to_toml(), folder=Path.cwd(), to_plan=True) == config
    for wrong in ("train = { stepz = 3 }", 'strategy = "ddpp"', 'train = { global_batch = "many" }'):
        with pytest.raises(ConfigError):
            from_text(wrong, folder=Path.cwd(), to_plan=True)
    with pytest.raises(ConfigError, match="stepz"):
        from_text(text, folder=Path.cwd(), to_plan=True, overrides=["train.stepz=3"])
