"""Build the workload of a RunConfig: model, data, loss, optimizer and schedule.

Strategies play no role here. Model arguments that the configuration omits (classes, vocabulary, channels) are
inferred from the data's spec, or from the first sample of the user's own data. Data arguments that the
configuration omits (context) are inferred from the model's arguments. Read loop.py next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rankdeck.base.errors import ConfigError, DataError, ModelError, format_choices
from rankdeck.base.phrases import phrase
from rankdeck.config import RunConfig
from rankdeck.config.catalog import DATA, LOSSES, MODELS, OPTIMIZERS, SCHEDULES
from rankdeck.config.schema import DEFAULT_STEPS
from rankdeck.data.base import DataSource, DataSpec, SampleSet
from rankdeck.data.loader import first_batch, read_samples
from rankdeck.data.samplers import EpochLayout
from rankdeck.data.synthetic import Synthetic, input_spec
from rankdeck.models.checkpointing import checkpoint_blocks
from rankdeck.models.losses import Loss, cross_entropy, user_loss
from rankdeck.torch_compat.dtensors import is_dtensor
from rankdeck.training import user_code


@dataclass
class Workload:
    """Model, data and number of steps of a run. `data_spec` is None for the user's own data; `steps` is set
    even if the configuration gives epochs, or nothing, instead of steps."""

    config: RunConfig
    data_spec: DataSpec | None
    train: SampleSet
    heldout: SampleSet | None
    loss: Loss
    steps: int
    schedule: LrFactor

    @property
    def epochs(self) -> EpochLayout:
        return _make_epochs(self.config, len(self.train))

    @property
    def has_varying_counts(self) -> bool:
        """Whether only a forward pass yields the number of targets, so that ranks must sum their counts."""
        if self.data_spec is None or self.data_spec.may_mask:
            return True
        return self.config.loss.use not in ("cross_entropy", "mse")

    @property
    def has_classes(self) -> bool:
        """Whether targets are treated as classes, not as next tokens, so that accuracy is meaningful."""
        return self.data_spec is None or self.data_spec.classes is not None

    def build_model(self) -> nn.Module:
        """Build the model from the run's seed, so that every process gets the same weights.

        Raises: ModelError.
        """
        torch.manual_seed(self.config.train.seed)
        model = _build_model(self.config, self.data_spec, self.train)
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ModelError(
                phrase("The model has no trainable parameters."),
                path="model.use",
                advice=phrase("Keep requires_grad = True for the parameters to be trained."),
            )
        if self.config.train.activation_checkpointing:
            checkpoint_blocks(model)
        return model

    def build_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """Build the optimizer for parameters that are already on their final devices.

        Raises: ConfigError if the class does not take the configured options or these parameters.
        """
        chosen = self.config.train.optimizer
        # TOML has only lists, but torch expects tuples (betas).
        options = {key: tuple(v) if isinstance(v, list) else v for key, v in chosen.options.items()}
        if user_code.is_user_code(chosen.use):
            make = user_code.build_optimizer_class(chosen.use, _config_folder(self.config))
        else:
            make = OPTIMIZERS[chosen.use].load()
        try:
            if make.__module__.startswith("torch.optim."):
                return make(_group_by_mesh(parameters), **options)
            return _add_hook_tables(make(parameters, **options))
        except (TypeError, ValueError, RuntimeError) as error:
            raise ConfigError(
                phrase("train.optimizer {optimizer}: {error}.", optimizer=chosen.use, error=error),
                path="train.optimizer",
                advice=phrase("Check its options."),
            ) from None


def _add_hook_tables(optimizer: Optimizer) -> Optimizer:
    """Add the attributes that torch's Optimizer constructor sets, because a wrapper may not have called the
    constructor."""
    if "_optimizer_step_pre_hooks" not in vars(optimizer):
        vars(optimizer).setdefault("defaults", {})
        # torch's __setstate__ adds the tables that are missing.
        Optimizer.__setstate__(optimizer, {})
    return optimizer


def _group_by_mesh(parameters: Iterable[nn.Parameter]) -> list[Any]:
    """Group weights by device mesh if they are not all on the same mesh.

    torch's multi-tensor kernels (foreach, fused) require all weights of a group to be on the same mesh.
    """
    groups: dict[Any, list[nn.Parameter]] = {}
    for weight in parameters:
        groups.setdefault(weight.device_mesh if is_dtensor(weight) else None, []).append(weight)
    lists = list(groups.values())
    return lists[0] if len(lists) == 1 else [{"params": weights} for weights in lists]


def _config_folder(config: RunConfig) -> Path:
    return Path(config.folder or ".")


def data_source(config: RunConfig) -> DataSource | None:
    """Return the configured data set of the catalogue, with its arguments; None for the user's own data."""
    if user_code.is_user_code(config.data.use):
        return None
    args = dict(config.data.args)
    # Samples have to be as long as the model's context.
    if config.data.use == "text" and "context" not in args and "context" in config.model.args:
        args["context"] = config.model.args["context"]
    if config.data.use == "synthetic":
        return Synthetic(args, input_spec(config.model.use, config.model.args))
    source: DataSource = DATA[config.data.use].load()(args)
    return source


def prepare(config: RunConfig) -> None:
    """Prepare the data once before ranks start: build its vocabulary. No user code is run.

    Raises: DataError.
    """
    data = data_source(config)
    if data is not None:
        data.prepare()


def load(config: RunConfig) -> Workload:
    """Load the workload; the strategy later builds the model and the optimizer on the run's devices.

    Raises: DataError, ModelError, ConfigError.
    """
    data = data_source(config)
    if data is None:
        card = None
        train, heldout = user_code.build_data(config.data.use, config.data.args, _config_folder(config))
    else:
        card = data.describe()
        train, heldout = data.load()
    return _make_workload(config, card, train, heldout)


def read_user_sample(dataset: SampleSet, index: int) -> Any:
    """Read a sample of the user's own data as a batch of one, in the data set's own structure."""
    return merge_sample(read_samples(dataset, [index]))


def merge_sample(batch: tuple[Any, Any]) -> Any:
    """Return the dict that a loader has split into the pair `batch`; `batch` itself if there was no dict."""
    inputs, targets = batch
    # A loader splits a dict without copying, so identity shows that both are from one.
    is_one = isinstance(inputs, dict) and targets is inputs.get("labels", inputs)
    return inputs if is_one else batch


def load_without_data(
    config: RunConfig,
    stand_in: Callable[[Any, int], SampleSet],
    of_own: Callable[[SampleSet], SampleSet],
) -> Workload:
    """Load the workload without reading the catalogue's data.

    `stand_in(sample, num_samples)` replaces that data; `of_own(data)` replaces the user's own data. `sample`
    is one sample as a batch of meta tensors, (1, ...) each, with the shapes and dtypes of the data's spec.
    """
    data = data_source(config)
    if data is None:
        train, _ = user_code.build_data(config.data.use, config.data.args, _config_folder(config))
        return _make_workload(config, None, of_own(train), None)
    card = data.describe()
    sample = (
        torch.empty((1, *card.input_shape), dtype=card.input_dtype, device="meta"),
        torch.empty((1, *card.target_shape), dtype=card.target_dtype, device="meta"),
    )
    num_samples = card.train_samples or config.train.global_batch
    return _make_workload(config, card, stand_in(sample, num_samples), None)


def _make_workload(
    config: RunConfig, card: DataSpec | None, train: SampleSet, heldout: SampleSet | None
) -> Workload:
    if card is not None and (problem := _find_mismatch(config, card) or _find_too_few(config, card)):
        raise problem
    steps = _num_steps(config, len(train))
    options = config.train.schedule.options
    schedule: LrFactor = SCHEDULES[config.train.schedule.use].load()(steps, **options)
    return Workload(config, card, train, heldout, make_loss(config, card), steps, schedule)


def _num_steps(config: RunConfig, num_samples: int) -> int:
    train = config.train
    if num_samples < train.global_batch:
        raise DataError(
            phrase(
                "train.global_batch = {global_batch} exceeds the number of training samples ({num_samples}).",
                num_samples=num_samples,
                global_batch=train.global_batch,
            ),
            path="train.global_batch",
            advice=phrase(
                "Reduce the global batch to {num_samples} or less, or use more data.", num_samples=num_samples
            ),
            changes={"train.global_batch": num_samples},
        )
    if train.epochs is not None:
        return train.epochs * _make_epochs(config, num_samples).steps
    return train.steps or DEFAULT_STEPS


def _make_epochs(config: RunConfig, num_samples: int) -> EpochLayout:
    return EpochLayout(num_samples, config.train.global_batch, keep_last=config.data.last == "keep")


def make_loss(config: RunConfig, card: DataSpec | None) -> Loss:
    """Build the configured loss; if the model computes it, only a forward pass yields the target count."""
    use = config.loss.use
    if user_code.is_user_code(use):
        return user_loss(use, user_code.build_loss(use, _config_folder(config)))
    if use == "cross_entropy":
        return cross_entropy(may_mask=card is None or card.may_mask)
    loss: Loss = LOSSES[use].load()()
    return loss


def _build_model(config: RunConfig, card: DataSpec | None, train: SampleSet) -> nn.Module:
    use = config.model.use
    if user_code.is_user_code(use):
        return user_code.build_model(use, config.model.args, _config_folder(config))
    args = {**_infer_args(config, card, train), **config.model.args}
    missing = [name for name in _REQUIRED_ARGS[use] if name not in args]
    if missing:
        names = ", ".join(missing)
        raise ModelError(
            phrase(
                "Model {use} needs {names}, which cannot be inferred from your own data.",
                use=use,
                names=names,
            ),
            path="model.args",
            advice=phrase("Set {names} in model.args, or use your own model.", names=names),
        )
    model: nn.Module = MODELS[use].load()(**args)
    return model


_REQUIRED_ARGS = {"mlp": ("inputs", "classes"), "gpt": ("vocabulary",), "resnet": ("classes", "in_channels")}


def _infer_args(config: RunConfig, card: DataSpec | None, train: SampleSet) -> dict[str, int]:
    """Return the arguments of a catalogue model that can be inferred from the data."""
    if card is None:
        inputs, _ = first_batch(train, 1)
        shape = tuple(inputs.shape[1:]) if isinstance(inputs, Tensor) else ()
        args = {"inputs": math.prod(shape), "in_channels": shape[0]} if shape else {}
        return {name: value for name, value in args.items() if name in _REQUIRED_ARGS[config.model.use]}
    getters: dict[str, Callable[[], int | None]] = {
        "inputs": lambda: math.prod(card.input_shape),
        "classes": lambda: card.classes or card.vocabulary,
        "vocabulary": lambda: card.vocabulary,
        "in_channels": lambda: card.input_shape[0],
    }
    values = {name: getters[name]() for name in _REQUIRED_ARGS[config.model.use]}
    return {name: value for name, value in values.items() if value is not None}


def _find_mismatch(config: RunConfig, card: DataSpec) -> ModelError | None:
    """Return an error if a catalogue model cannot be trained on the catalogue's data."""
    use, data = config.model.use, config.data.use
    fits = {
        "mlp": card.vocabulary is None,
        "gpt": card.vocabulary is not None,
        "resnet": len(card.input_shape) == 3,
    }
    if fits.get(use, True):
        return None
    if card.vocabulary is not None:
        message = phrase(
            "Model {use} cannot be trained on data {data}, whose samples are sequences of {length} tokens.",
            use=use,
            data=data,
            length=card.input_shape[0],
        )
    else:
        message = phrase(
            "Model {use} cannot be trained on data {data}, whose samples are tensors of shape {shape}.",
            use=use,
            data=data,
            shape=tuple(card.input_shape),
        )
    better = {"mlp": ["digits"], "gpt": ["text"], "resnet": ["images", "digits"]}[use]
    return ModelError(
        message,
        path="model.use",
        advice=phrase("Set data.use = {better}, or use another model.", better=format_choices(better)),
        changes={"data.use": "digits" if "digits" in better else better[0]},
    )


def _find_too_few(config: RunConfig, card: DataSpec) -> ModelError | None:
    """Return an error if a catalogue model has too few classes or tokens for its data."""
    if config.model.use not in _REQUIRED_ARGS:
        return None
    minimums = {"classes": card.classes, "vocabulary": card.vocabulary}
    for name, minimum in minimums.items():
        value = config.model.args.get(name)
        if value is not None and minimum is not None and value < minimum:
            return ModelError(
                phrase(
                    "model.args.{name} is {given}, but data {data} needs at least {least}.",
                    name=name,
                    given=value,
                    data=config.data.use,
                    least=minimum,
                ),
                path=f"model.args.{name}",
                advice=phrase("Omit it: Rankdeck infers it from the data."),
            )
    return None


# Learning-rate schedules: functions from a step to a factor of the optimizer's own rate.
#
# The loop calls a schedule's function, and a plot can draw it; steps count from 0. `warmup` steps rise
# linearly from 1/warmup.

LrFactor = Callable[[int], float]
Schedule = Callable[..., LrFactor]


def _warmup_factor(step: int, warmup: int) -> float:
    return min(1.0, (step + 1) / warmup) if warmup else 1.0


def _decay_progress(step: int, steps: int, warmup: int) -> float:
    """Return the progress of the decay: 0 at the end of the warm-up, 1 at the last step."""
    return min(1.0, max(0.0, (step - warmup) / max(1, steps - 1 - warmup)))


def constant(steps: int, *, warmup: int = 0) -> LrFactor:
    return lambda step: _warmup_factor(step, warmup)


def cosine(steps: int, *, warmup: int = 0, final: float = 0.0) -> LrFactor:
    def factor(step: int) -> float:
        wave = 0.5 * (1 + math.cos(math.pi * _decay_progress(step, steps, warmup)))
        return _warmup_factor(step, warmup) * (final + (1 - final) * wave)

    return factor


def linear(steps: int, *, warmup: int = 0, final: float = 0.0) -> LrFactor:
    return lambda step: (
        _warmup_factor(step, warmup) * (1 - (1 - final) * _decay_progress(step, steps, warmup))
    )


def one_cycle(steps: int, *, rise: float = 0.3) -> LrFactor:
    """Return a factor that rises from 1/25 to 1, then falls to 1/250,000, each time along half a cosine wave.

    Source: Smith and Topin, Super-Convergence, 2018.
    """
    top = max(1, round(rise * steps))

    def factor(step: int) -> float:
        if step < top:
            return _interpolate_cosine(1 / 25, 1.0, step / top)
        return _interpolate_cosine(1.0, 1 / 25e4, _decay_progress(step, steps, top))

    return factor


def _interpolate_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))
