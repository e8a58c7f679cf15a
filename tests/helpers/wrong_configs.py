"""Configurations with one mistake each: at least one for every rule and every refusal there is.

What the engine says of them, and what the app does with it, is tested with the same rows.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WrongConfig:
    """`text` has one problem: `code` at `path`. Without a cure only the person knows what is right."""

    text: str
    code: str
    path: str
    has_fix: bool = True


def _config_text(strategy: str, train: str = "", devices: str = "cpu:4", more: str = "") -> str:
    return f'[strategy]\n{strategy}\n[train]\n{train}\n[devices]\nuse = "{devices}"\n{more}'


def _refused_config(
    strategy: str, path: str, train: str = "", devices: str = "cpu:4", more: str = ""
) -> WrongConfig:
    return WrongConfig(_config_text(strategy, train, devices, more), "does-not-combine", path)


REFUSED = (
    _refused_config('use = "single"', "train.precision", 'precision = "fp16"', "cpu:1"),
    _refused_config('use = "fsdp"', "train.precision", 'precision = "fp16"', "gpu:all"),
    _refused_config('use = "dp"', "train.compile", "compile = true"),
    _refused_config('use = "ddp"', "train.compile", "compile = true\nactivation_checkpointing = true"),
    _refused_config('use = "ddp"', "train.optimizer.foreach",
             'optimizer = { use = "adamw", foreach = true, fused = true }'),
    _refused_config('use = "ddp"', "train.optimizer.use", 'optimizer = { use = "torch.optim:LBFGS" }'),
    _refused_config('use = "tensor"', "train.optimizer.use", 'optimizer = { use = "torch.optim:Adafactor" }'),
    _refused_config('use = "fsdp"', "train.optimizer.use", 'optimizer = { use = "torch.optim:Muon" }'),
    _refused_config('use = "ddp"\nstatic_graph = true', "strategy.static_graph", "accumulate = 2"),
    _refused_config(
        'use = "ddp"\nstatic_graph = true\nfind_unused_parameters = true', "strategy.find_unused_parameters"
    ),
    _refused_config('use = "ddp"\nsync = "ring"\nstatic_graph = true', "strategy.static_graph"),
    _refused_config('use = "pipeline"\nschedule = "zbv"', "train.activation_checkpointing",
             "activation_checkpointing = true"),
    _refused_config('use = "pipeline-async"', "train.clip_norm", "clip_norm = 1.0"),
    _refused_config('use = "pipeline-async"', "model.args.tied",
             more='[model]\nuse = "gpt"\nargs = { tied = true }\n[data]\nuse = "text"'),
    _refused_config('use = "ddp"\nsync = "ring"\ngradient_as_bucket_view = true',
             "strategy.gradient_as_bucket_view"),
)  # fmt: skip
"""One for each row of capabilities.REFUSALS, in its order."""

WRONG = (
    *REFUSED,
    WrongConfig("[train]\nsteps = 5\nepochs = 5", "both-given", "train.epochs"),
    WrongConfig('[devices]\nuse = "tpu:8"', "device", "devices.use", has_fix=False),
    WrongConfig("[rehearsal]\ndevice_gflops = 1", "does-not-combine", "rehearsal.device_gflops"),
    WrongConfig('[rehearsal]\ncapacity = "big"', "wrong-value", "rehearsal.capacity", has_fix=False),
    WrongConfig(_config_text('use = "ddp"', 'precision = "fp64"', "gpu:all"), "precision", "train.precision"),
    WrongConfig(_config_text('use = "ddp"', "", "gpu:all", '[rehearsal]\npace = "simulated"'),
          "does-not-combine", "rehearsal.pace"),
    WrongConfig(_config_text('use = "pipeline"', "", "cpu:1"), "too-few-devices", "devices.use"),
    WrongConfig(_config_text('use = "hybrid"\ndata = 3'), "mesh", "strategy.data"),
    WrongConfig(_config_text('use = "hybrid"\nstage = 3\ntensor = 2'), "mesh", "strategy.stage"),
    WrongConfig(_config_text('use = "ddp"', "global_batch = 10"), "batch", "train.global_batch"),
    WrongConfig(_config_text('use = "ddp"', "global_batch = 2"), "batch", "train.global_batch"),
    WrongConfig(_config_text('use = "pipeline"\nschedule = "1f1b"', "global_batch = 2"), "microbatches",
          "train.global_batch"),
    WrongConfig(_config_text('use = "pipeline"\nmicrobatches = 3', "global_batch = 16"), "microbatches",
          "strategy.microbatches"),
    WrongConfig(_config_text('use = "pipeline-async"', "accumulate = 2"), "microbatches", "train.accumulate"),
    WrongConfig(_config_text('use = "pipeline-async"\nmode = "2bw"', "accumulate = 2"), "microbatches",
          "train.accumulate"),
    WrongConfig("train = 3", "wrong-type", "train", has_fix=False),
    WrongConfig("[train]\noptimizer = 3", "wrong-type", "train.optimizer", has_fix=False),
    WrongConfig("[strategy]\nuse = 3", "wrong-type", "strategy.use", has_fix=False),
    WrongConfig("name = 3", "wrong-type", "name", has_fix=False),
    WrongConfig("folder = 3", "wrong-type", "folder", has_fix=False),
    WrongConfig("[train]\nstpes = 5", "unknown-option", "train.stpes"),
    WrongConfig("[train]\nqqq = 5", "unknown-option", "train.qqq"),
    WrongConfig("[trian]\nsteps = 5", "unknown-option", "trian", has_fix=False),
    WrongConfig('[strategy]\nuse = "ddp"\nbucket = 5', "unknown-option", "strategy.bucket"),
    WrongConfig('[data]\nuse = "images"', "missing", "data.args.path", has_fix=False),
    WrongConfig("[train]\nsteps = 0", "wrong-value", "train.steps"),
    WrongConfig("[data]\nworkers = 65", "wrong-value", "data.workers"),
    WrongConfig("[launch]\ntimeout_s = 0", "wrong-value", "launch.timeout_s", has_fix=False),
    WrongConfig("[train]\nsteps = true", "wrong-value", "train.steps", has_fix=False),
    WrongConfig("[train]\nclip_norm = false", "wrong-value", "train.clip_norm", has_fix=False),
    WrongConfig("[model]\nargs = { hidden = [true] }", "wrong-value", "model.args.hidden.0", has_fix=False),
    WrongConfig('[model]\nuse = "..:x"', "wrong-value", "model.use", has_fix=False),
    WrongConfig('[loss]\nuse = "a b:x"', "wrong-value", "loss.use", has_fix=False),
    WrongConfig('[train]\noptimizer = { use = ":Mine" }', "wrong-value", "train.optimizer.use",
          has_fix=False),
    WrongConfig(f'name = "{"a" * 5000}"', "wrong-value", "name", has_fix=False),
    WrongConfig(_config_text('use = "single"', "global_batch = 2000"), "batch", "train.global_batch"),
    WrongConfig('[train]\nglobal_batch = 32\n[data]\nuse = "synthetic"\nargs = { samples = 16 }', "batch",
          "train.global_batch"),
    WrongConfig('[train]\nsteps = "x"', "wrong-value", "train.steps", has_fix=False),
    WrongConfig('[train]\nprecision = "bf61"', "wrong-value", "train.precision"),
    WrongConfig("[model]\nargs = { hidden = [0] }", "wrong-value", "model.args.hidden.0", has_fix=False),
    WrongConfig('[train]\noptimizer = { use = "sgd", momentum = 7 }', "wrong-value",
          "train.optimizer.momentum", has_fix=False),
    WrongConfig('[train]\noptimizer = { use = "sgd", eps = 1 }', "foreign-option", "train.optimizer.eps"),
    WrongConfig('[strategy]\nuse = "ddpp"', "unknown-choice", "strategy.use"),
    WrongConfig('[model]\nuse = "transformer"', "unknown-choice", "model.use", has_fix=False),
    WrongConfig('[train]\nschedule = { use = "cosin" }', "unknown-choice", "train.schedule.use"),
    WrongConfig('[train]\nsteps = "?"', "fill-in", "train.steps", has_fix=False),
)  # fmt: skip
