"""Builds a Hugging Face model from its configuration alone, and random samples that fit it, for planning or
for training from scratch.

    [model]
    use = "rankdeck.models.hugging_face:model"
    args = { config = "path/to/config.json", num_hidden_layers = 8 }
    [data]
    use = "rankdeck.models.hugging_face:tokens"
    args = { config = "path/to/config.json", length = 1024 }
    [loss]
    use = "model"

`config` is a file or its folder; the model's other arguments override fields of the configuration. Nothing is
downloaded, and no weights are read. Requires the `hf` extra. Read user_code.py for how a factory is called.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from rankdeck.base.errors import MachineError, ModelError
from rankdeck.base.home import expand_home
from rankdeck.base.parsing import parse_json_object
from rankdeck.base.phrases import phrase

DEFAULT_SAMPLES = 4096
# Training needs no key-value cache.
_WITHOUT_CACHE = {"use_cache": False}


def model(*, config: str, **changes: Any) -> nn.Module:
    """Instantiate the model class named in `architectures`, with fields of the configuration overridden by
    `changes`.

    Raises:
        ModelError: the file is not a configuration that names such a class.
        MachineError: the `hf` extra is not installed.
    """
    fields = {**_read_config(config), **_WITHOUT_CACHE, **changes}
    transformers = _transformers()
    name = (fields.get("architectures") or ["none"])[0]
    architecture = getattr(transformers, name, None)
    if architecture is None:
        raise ModelError(
            phrase(
                "{config} names the architecture {name}, which this version of transformers does not have.",
                config=config,
                name=name,
            ),
            path="model.args.config",
            advice=phrase("Check `architectures` in the file, or install a newer version of transformers."),
        )
    # These two describe the file and are not options of the model.
    config_fields = {
        key: value for key, value in fields.items() if key not in ("architectures", "transformers_version")
    }
    built: nn.Module = architecture(architecture.config_class(**config_fields))
    return built


def tokens(*, config: str, length: int, samples: int = DEFAULT_SAMPLES) -> tuple[RandomTokens, None]:
    """Return (data, None): random sequences from the configuration's vocabulary, used as both inputs and
    labels. None means that there is no held-out data.

    Raises:
        ModelError: the file is not a language model's configuration.
    """
    vocabulary = _read_config(config).get("vocab_size")
    if not isinstance(vocabulary, int):
        raise ModelError(
            phrase(
                "{config} has no vocab_size: it is not the configuration of a language model.", config=config
            ),
            path="data.args.config",
            advice=phrase("Use your own data set for this model."),
        )
    return RandomTokens(vocabulary, length, samples), None


class RandomTokens(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Random token sequences; sample i is seeded by i."""

    def __init__(self, vocabulary: int, length: int, samples: int) -> None:
        self._vocabulary, self._length, self._samples = vocabulary, length, samples

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        drawn = torch.Generator().manual_seed(index)
        ids = torch.randint(self._vocabulary, (self._length,), generator=drawn)
        return {"input_ids": ids, "labels": ids}


def _read_config(config: str) -> dict[str, object]:
    path = expand_home(config)
    path = path / "config.json" if path.is_dir() else path
    try:
        return parse_json_object(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(
            phrase(
                "{path} is not a Hugging Face configuration: {why}.",
                path=path,
                why=getattr(error, "strerror", None) or error,
            ),
            path="model.args.config",
            advice=phrase("Use the path of a model's config.json, or of the folder that contains it."),
        ) from None


def _transformers() -> Any:
    try:
        import transformers
    except ImportError:
        raise MachineError(
            phrase("Hugging Face transformers is not installed."),
            code="no-transformers",
            advice=phrase("pip install 'rankdeck[hf]'"),
        ) from None
    return transformers
