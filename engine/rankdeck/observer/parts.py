"""Table of the observer's parts and of the modules whose import triggers them.

Each row is `(watched, part, file, function)`: after the module `watched` is imported, the observer calls
`function(module, session)` in `file` of this package. If `watched` is a submodule of torch, the call waits
until torch itself is imported. A part may have several rows.
"""

LOGGERS = (
    "transformers.trainer",
    "accelerate.accelerator",
    "torch.utils.tensorboard.writer",
    "tensorboardX.writer",
    "wandb.sdk.wandb_run",
    "wandb.sdk.lib.noop_run",
    "mlflow.tracking.fluent",
    "mlflow.tracking.client",
)
"""Modules of the logging libraries that a script may use; loggers.py lists the calls that are wrapped."""
LIGHTNING = (
    "pytorch.trainer.connectors.logger_connector.logger_connector",
    "fabric.fabric",
    "fabric.loggers.csv_logs",
    "fabric.loggers.tensorboard",
    "pytorch.loggers.wandb",
    "pytorch.loggers.mlflow",
    "pytorch.loggers.comet",
    "pytorch.loggers.neptune",
)
"""Modules of Lightning, whose subpackages pytorch and fabric are also published as separate packages."""
_STANDALONE_PACKAGES = {"pytorch": "pytorch_lightning", "fabric": "lightning_fabric"}


def module_names(name: str) -> "tuple[str, str]":
    """Return the two names under which a Python module of Lightning may be imported."""
    room, _, rest = name.partition(".")
    return "lightning." + name, _STANDALONE_PACKAGES[room] + "." + rest


PARTS = (
    ("torch", "steps", "steps", "install"),
    ("torch", "loss", "losses", "install"),
    ("torch._dynamo.trace_rules", "compiler", "steps", "leave_uncompiled"),
    ("torch", "model", "models", "install"),
    ("torch", "order", "step_order", "install"),
    ("torch", "weights", "weight_digests", "install"),
    ("torch", "belonging", "parameter_checks", "install"),
    ("torch", "graph parameters", "graph_parameters", "install"),
    ("torch", "modes", "mode_checks", "install"),
    ("torch", "loaded", "loaded_weights", "install"),
    ("torch", "schedule", "schedulers", "install"),
    ("torch", "resume", "resumed_training", "install"),
    ("torch", "finite", "not_finite", "install"),
    ("torch", "graphs", "retained_graphs", "install"),
    ("torch", "growth", "growth", "install"),
    ("torch", "memory growth", "memory_growth", "install"),
    ("torch.amp.grad_scaler", "scaler", "grad_scaler", "install"),
    ("torch.distributed.fsdp.sharded_grad_scaler", "scaler", "grad_scaler", "install_sharded"),
    ("torch.utils.data.dataloader", "samples", "loaders", "install"),
    ("torch", "stacks", "stacks", "install"),
    ("torch.nn.parallel.distributed", "wrapper", "wrappers", "install_ddp"),
    ("torch.nn.parallel.distributed", "inputs", "model_inputs", "install"),
    ("torch.nn.parallel.data_parallel", "wrapper", "wrappers", "install_dp"),
    ("torch.distributed.fsdp", "wrapper", "wrappers", "install_fsdp"),
    ("torch.distributed._composable.fsdp", "wrapper", "wrappers", "install_fsdp"),
    ("torch", "memory", "memory", "install"),
    ("torch", "full", "full_observation", "install"),
    ("torch.utils.data.dataloader", "full", "full_observation", "name_batches"),
    ("torch.distributed.rendezvous", "meeting", "rendezvous", "install"),
    ("torch", "collectives", "collectives", "install"),
    ("torch.distributed._functional_collectives", "collectives", "collectives", "let_compile"),
    *((name, "loggers", "loggers", "install") for name in LOGGERS),
    *(
        (name, "loggers", "loggers", "install")
        for short_name in LIGHTNING
        for name in module_names(short_name)
    ),
)
