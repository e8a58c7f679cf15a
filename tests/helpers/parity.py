"""Small configurations that every strategy is compared on, and single's weights for each, computed once."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

from safetensors.torch import load_file
from torch import Tensor

from tests.helpers.rank_main import train_once

TOLERANCES = {"fp32": 2e-6, "fp64": 1e-10}
MIN_DIFFERENCE = 1e-4

OWN_MODELS = Path(__file__).with_name("own_models.py")
_PADDED = Path(__file__).with_name("padded.py")
_PAST_CUTS = Path(__file__).with_name("past_cuts.py")
_GPT = "heads = 4, width = 32, context = 16, vocabulary = 64"
WORKLOADS = {
    "mlp": 'model = { use = "mlp", args = { hidden = [32] } }\ndata = { use = "digits" }',
    "gpt": (
        f'model = {{ use = "gpt", args = {{ layers = 2, {_GPT} }} }}\n'
        'data = { use = "synthetic", args = { samples = 128 } }'
    ),
    "gpt-masked": (
        f'model = {{ use = "gpt", args = {{ layers = 2, {_GPT} }} }}\n'
        'data = { use = "synthetic", args = { samples = 128, masked = 0.4 } }'
    ),
    "gpt-tied": (
        f'model = {{ use = "gpt", args = {{ layers = 2, tied = true, {_GPT} }} }}\n'
        'data = { use = "synthetic", args = { samples = 128 } }'
    ),
    # Units for eight stages: four ranks with two each.
    **{
        f"gpt-deep{kind}": (
            f'model = {{ use = "gpt", args = {{ layers = 6, {model}{_GPT} }} }}\n'
            f'data = {{ use = "synthetic", args = {{ samples = 128{data} }} }}'
        )
        for kind, model, data in (
            ("", "", ""),
            ("-tied", "tied = true, ", ""),
            ("-masked", "", ", masked = 0.4"),
        )
    },
    "mlp-deep": (
        'model = { use = "mlp", args = { hidden = [32, 32, 32, 32, 32, 32, 32] } }\ndata = { use = "digits" }'
    ),
    # Most ranks' slices hold no target at all, in some steps none does.
    "mlp-nearly-all-masked": (
        'model = { use = "mlp", args = { hidden = [32] } }\n'
        'data = { use = "synthetic", args = { samples = 512, masked = 0.9 } }'
    ),
    "batch-norm": f'model = {{ use = "{OWN_MODELS}:tiny_conv" }}\ndata = {{ use = "digits" }}',
    "scaled": f'model = {{ use = "{OWN_MODELS}:scaled" }}\ndata = {{ use = "digits" }}',
    **{
        name: f'model = {{ use = "{OWN_MODELS}:{name}" }}\ndata = {{ use = "digits" }}'
        for name in (
            "skipping_norms",
            "normed_row",
            "hiding",
            "asking",
            "unseeded",
            "tied_blocks",
            "row",
            "marked",
            "bare_blocks",
            "residual_once",
            "sparse",
        )
    },
    **{
        name: f'model = {{ use = "{_PAST_CUTS}:{name}" }}\ndata = {{ use = "digits" }}'
        for name in (
            "tied_by_function",
            "late_temperature",
            "gated_skip",
            "counting",
            "old_spectral_norm",
            "detached_in_training",
            "unused",
            "frozen",
        )
    },
    "padded": f'model = {{ use = "{_PADDED}:model" }}\ndata = {{ use = "{_PADDED}:of_all_lengths" }}',
    "resnet": 'model = { use = "resnet", args = { stem = "small" } }\ndata = { use = "digits" }',
}


def configuration(
    workload: str,
    strategy: str = '{ use = "single" }',
    num_devices: int = 1,
    *,
    precision: str = "fp32",
    accumulate: int = 1,
    lr: float = 0.02,
    steps: int = 3,
    train: str = "",
) -> str:
    """Steps of SGD over 16 samples each: a first one, one that the ledger follows, and a plain one.

    `strategy` is its table, `train` more lines of [train].
    """
    return f"""
{WORKLOADS[workload]}
strategy = {strategy}
devices = {{ use = "cpu:{num_devices}" }}
[train]
steps = {steps}
global_batch = 16
accumulate = {accumulate}
precision = "{precision}"
evaluate_every = 0
clip_norm = 1.0
optimizer = {{ use = "sgd", lr = {lr} }}
{train}
"""


@functools.cache
def single_device_weights(
    workload: str, precision: str = "fp32", accumulate: int = 1, lr: float = 0.02, train: str = ""
) -> dict[str, Tensor]:
    """What `single` ends with."""
    toml = configuration(workload, precision=precision, accumulate=accumulate, lr=lr, train=train)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "weights.safetensors"
        train_once({"toml": toml, "out": str(out)}, rank=0, world_size=1)
        return load_file(out)
