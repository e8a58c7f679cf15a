"""Tables of what can be chosen: strategies, models, data sets, losses, optimizers, schedules.

Each row is a card: a name, words for people, the options as a pydantic model, and a lazy target
("package.module:attribute") that is imported only by the rank that needs it. Adding a row here is what makes
a thing appear in configurations, the command line and the app. A registry is this table; nothing is found by
scanning. Read schema.py next.
"""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import itertools
import types
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.fields import FieldInfo

from rankdeck.base.parsing import JsonObject
from rankdeck.config import mesh_sizes
from rankdeck.config.planning import Planning, uses_torchs_ddp, usual_meshes


class Options(BaseModel):
    """Options of one card. Unknown names are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Positive = Annotated[int, Field(ge=1, lt=2**31)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0)]


class NoOptions(Options):
    pass


class DpOptions(Options):
    parallel_loss: bool = False
    """Compute the loss inside the forward, so that only losses are gathered."""


class DdpOptions(Options):
    sync: Literal["native", "ring", "reduce-broadcast", "all-to-all"] = "native"
    """How gradients meet. native: bucketed all-reduce while backward runs; the others are explicit and start
    after it."""
    compress: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """What gradients travel as: fp16 and bf16 halve them, powersgd sends thin sketches."""
    powersgd_rank: Annotated[int, Field(ge=1, le=64)] = 4
    """Columns of PowerSGD's thin matrices: more are closer, and cost more bytes."""
    bucket_mb: Annotated[float, Field(gt=0, le=1024)] = 25.0
    """MiB of gradients that travel together; native powersgd always takes one bucket."""
    find_unused_parameters: bool = False
    """Allow parameters that take no part in a loss; ranks ask each other in each step."""
    static_graph: bool = False
    """Promise that every step uses the same parameters: native learns them once."""
    gradient_as_bucket_view: bool = False
    """Gradients are views of the buckets: one copy less."""
    sync_batchnorm: bool = False
    """Batch norm over the batches of all ranks, as one device would compute it."""


class FsdpOptions(Options):
    reshard: bool = True
    """Let a block's gathered weights go after its forward and gather them again for its backward: less
    memory, more bytes."""
    find_unused_parameters: bool = False
    """Without effect: ranks may use different parameters in any case."""
    sync_batchnorm: bool = False
    """Batch norm over the batches of all ranks, as one device would compute it."""


class TensorOptions(Options):
    plan: dict[str, Literal["column", "row"]] | None = None
    """Layers to split, as name patterns; found for transformer blocks where it is not given."""
    sequence_parallel: bool = False
    """Cut the stream between layers along the sequence: less memory, the same bytes."""
    loss_parallel: bool = False
    """Compute cross entropy on split classes: logits are never gathered."""


class CutOptions(Options):
    cuts: list[str | int] | None = None
    """Units that a stage begins with, by name or index; balanced where not given."""
    balance: Literal["parameters", "time", "activations"] = "parameters"
    """What stages are made even in: weights, measured forward time, or memory."""


class PipelineOptions(CutOptions):
    schedule: Literal[
        "gpipe",
        "1f1b",
        "1f1b-by-hand",
        "interleaved-1f1b",
        "looped-bfs",
        "interleaved-zero-bubble",
        "zbv",
        "dualpipev",
    ] = "1f1b"
    """In which order stages run forward and backward of the microbatches. 1f1b-by-hand is the same as 1f1b,
    written out in one function to be read; the others run in torch."""
    microbatches: Positive | None = None
    """Parts of the batch in the pipe; a divisor near 2 x stages where not given."""


class MeshOptions(Options):
    data: Positive = 1
    """Replicas: gradients are summed over this axis after backward."""
    shard: Positive = 1
    """Slices of every weight, put together block by block, as in fsdp."""
    stage: Positive = 1
    """Stages of layers with microbatches between them, as in pipeline."""
    tensor: Positive = 1
    """Slices of every large layer, as in tensor."""


class HybridOptions(PipelineOptions, MeshOptions):
    sync: Literal["native", "ring", "reduce-broadcast", "all-to-all"] = "native"
    """How gradients meet over data."""
    compress: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """What gradients travel as over data."""
    reshard: bool = True
    """shard: gather a block's weights again for its backward. Stages keep theirs."""
    plan: dict[str, Literal["column", "row"]] | None = None
    """tensor: layers to split, as name patterns; found where it is not given."""
    sequence_parallel: bool = False
    """tensor: cut the stream between layers as well."""
    loss_parallel: bool = False
    """tensor: cross entropy on split classes."""


class AsyncPipelineOptions(CutOptions):
    mode: Literal["stash", "2bw"] = "stash"
    """stash: weights kept per microbatch under way; 2bw: two versions, one update behind."""


class MlpArgs(Options):
    hidden: list[Positive] = [256, 256]
    """Widths of the hidden layers."""
    classes: Positive | None = None
    """Follows from the data where it is not given."""
    dropout: Fraction = 0.0


class GptArgs(Options):
    layers: Positive = 4
    heads: Positive = 4
    width: Positive = 128
    context: Positive = 128
    vocabulary: Positive | None = None
    """Follows from the data where it is not given."""
    tied: bool = False
    """The output layer shares the embedding's weights."""
    dropout: Fraction = 0.0


class ResnetArgs(Options):
    depth: Literal[18, 34, 50, 101] = 18
    classes: Positive | None = None
    """Follows from the data where it is not given."""
    stem: Literal["imagenet", "small"] = "imagenet"
    """small: a 3x3 convolution, for small pictures."""


class TextArgs(Options):
    path: str = "@stdlib"
    """A file or a folder; @stdlib is the source of the running Python."""
    vocabulary: Annotated[int, Field(ge=256, le=65536)] = 256
    """256: bytes; above that a BPE vocabulary."""
    context: Positive | None = None
    """Tokens per sample; follows from the model where it is not given."""


class ImagesArgs(Options):
    path: str
    """A folder with one folder per class, or with train/ and val/ above those."""
    size: Annotated[int, Field(ge=8, le=1024)] = 224
    """Pixels per side."""


class SyntheticArgs(Options):
    samples: Positive = 4096
    classes: Positive | None = None
    masked: Fraction = 0.0
    """Share of targets that are masked (-100)."""


class SgdArgs(Options):
    lr: Rate = 0.1
    momentum: Fraction = 0.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    nesterov: bool = False
    foreach: bool | None = None
    """Step lists of tensors at once, with copies of their size: torch does on GPUs, unless this is false."""
    fused: bool | None = None
    """Step in one kernel that needs no copies."""


class AdamArgs(Options):
    lr: Rate = 1e-3
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    eps: Rate = 1e-8
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    foreach: bool | None = None
    """Step lists of tensors at once, with copies of their size: torch does on GPUs, unless this is false."""
    fused: bool | None = None
    """Step in one kernel that needs no copies."""


class AdamwArgs(AdamArgs):
    weight_decay: Annotated[float, Field(ge=0)] = 0.01


class WarmupArgs(Options):
    warmup: Annotated[int, Field(ge=0)] = 0
    """Steps over which the rate rises from 0; 0 is off."""


class CosineArgs(WarmupArgs):
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """The last rate as a share of the first."""


class OneCycleArgs(Options):
    rise: Fraction = 0.3
    """Share of the steps over which the rate rises."""


@dataclass(frozen=True)
class CatalogCard:
    """One row.

    `target` is "module:attribute", `hint` at most four words. `train_samples`: of data that always has as
    many.
    """

    name: str
    title: str
    hint: str
    summary: str
    target: str
    options: type[Options] = NoOptions
    train_samples: int | None = None

    def load(self) -> Any:
        """The object behind the target, imported now."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class StrategyCard(CatalogCard):
    """`one_process`: one rank drives all devices. `one_device`: it uses the first of them only.
    `batch_shards`: the batch is cut by the number of devices. `min_devices`: fewer make no sense.
    `is_stale`: it steps with gradients of older weights, and trains something else than one device.
    """

    one_process: bool = False
    one_device: bool = False
    batch_shards: bool = True
    min_devices: int = 1
    is_stale: bool = False
    icon: str = "server"
    lives: str = ""
    sends: str = ""
    wins: str = ""
    breaks: str = ""
    planning: Planning = field(default_factory=Planning)

    @property
    def has_mesh(self) -> bool:
        """Whether its options are the sizes of a mesh."""
        return issubclass(self.options, MeshOptions)

    def changed(self, options: Mapping[str, Any]) -> dict[str, object]:
        """Options that are not the default ones."""
        defaults = self.options().model_dump()
        return {name: value for name, value in options.items() if defaults.get(name) != value}

    def batch_cut(self, options: Mapping[str, Any], num_devices: int) -> tuple[int, int]:
        """(slices of the batch, stages with microbatches between them)."""
        if self.planning.batch_cut is not None:
            return self.planning.batch_cut(options, num_devices)
        return (num_devices if self.batch_shards else 1), 1


def _table(*cards: Any) -> Mapping[str, Any]:
    return types.MappingProxyType({card.name: card for card in cards})


STRATEGIES: Mapping[str, StrategyCard] = _table(
    StrategyCard(
        "single",
        "Single",
        "one device",
        "The reference: one device holds everything.",
        "rankdeck.strategies.single:Single",
        one_process=True,
        one_device=True,
        batch_shards=False,
        icon="primitive-square",
        lives="Everything lives on one device.",
        sends="0 bytes per step.",
        wins="Whenever the model and its batch fit one device and one device is fast enough.",
        breaks="The first byte that does not fit.",
        planning=Planning(in_turn=True, one_thread=True),
    ),
    StrategyCard(
        "dp",
        "DP",
        "threads, device 0 gathers",
        "DataParallel: one process scatters the batch, copies the model to every device each step and "
        "gathers the outputs on device 0.",
        "rankdeck.strategies.data_parallel:DataParallel",
        DpOptions,
        one_process=True,
        icon="type-hierarchy",
        lives="Weights, gradients and optimizer state on device 0; during each step a copy of the weights on "
        "every device.",
        sends="Per step and other device: P bytes of weights out, P bytes of gradients back, inputs out and "
        "outputs back.",
        wins="Hardly ever: a quick try on two devices. parallel_loss gathers losses instead of outputs.",
        breaks="Device 0 runs out of memory first (gathered outputs, loss, optimizer), while others idle. "
        "Batch norms see a device's own samples.",
        planning=Planning(
            variants=lambda num_devices: [{}, {"parallel_loss": True}],
            less_memory=lambda options: {} if options["parallel_loss"] else {"parallel_loss": True},
            one_thread=True,
            waits_for_sends=True,
        ),
    ),
    StrategyCard(
        "ddp",
        "DDP",
        "one process per device",
        "DistributedDataParallel: every rank holds a replica; gradients are all-reduced in buckets while "
        "backward still runs.",
        "rankdeck.strategies.ddp:Ddp",
        DdpOptions,
        icon="multiple-windows",
        lives="Weights, gradients and optimizer state in full on every device, and buckets of gradients.",
        sends="Per rank and step, for G bytes of gradients: 2(n-1)/n x G (native, ring), (n-1) x G "
        "(all-to-all), (n-1) x G by rank 0 and G by each other (reduce-broadcast). fp16 and bf16 halve G.",
        wins="Whenever the model fits one device: equal memory, near-linear speed-up.",
        breaks="A model whose weights, gradients and optimizer state do not fit one device; slow links with "
        "small batches. Without sync_batchnorm batch norms see a device's own samples.",
        planning=Planning(
            variants=lambda num_devices: [{}, {"gradient_as_bucket_view": True}],
            less_memory=lambda options: (
                {"gradient_as_bucket_view": True}
                if uses_torchs_ddp(options) and not options["gradient_as_bucket_view"]
                else {}
            ),
            equal_ranks="all",
            stand_in=lambda options: "single" if uses_torchs_ddp(options) else None,
        ),
    ),
    StrategyCard(
        "fsdp",
        "FSDP",
        "weights in slices",
        "Fully sharded data parallel: every rank keeps a slice of every weight and puts one block together "
        "at a time, only while it computes with it.",
        "rankdeck.strategies.fsdp:Fsdp",
        FsdpOptions,
        icon="pie-chart",
        lives="1/n of weights, gradients and optimizer state on every device, plus the block that is "
        "gathered now and what lies in no block (embeddings, head).",
        sends="Per rank and step, for P bytes of weights and G of gradients: (n-1)/n x (2P + G); without "
        "reshard (n-1)/n x (P + G). On gloo 2G instead of G.",
        wins="A model that fits no single device; memory falls with the number of devices.",
        breaks="Slow links: weights travel in every forward and backward. Models without repeated blocks are "
        "gathered whole. Without sync_batchnorm batch norms see a device's own samples.",
        planning=Planning(
            variants=lambda num_devices: [{}, {"reshard": False}],
            less_memory=lambda options: {} if options["reshard"] else {"reshard": True},
            equal_ranks="slices",
            side_streams=True,
        ),
    ),
    StrategyCard(
        "model",
        "Model parallel",
        "layers on different devices",
        "Layer split: one process holds each part of the layers on a device of its own, and takes one batch "
        "after another through all of them.",
        "rankdeck.strategies.model_parallel:ModelParallel",
        CutOptions,
        one_process=True,
        batch_shards=False,
        icon="layers",
        lives="On each device the weights, gradients, optimizer state and activations of its own layers.",
        sends="Per step and cut 2 x A bytes: A bytes of activations of the whole batch on, A bytes of "
        "gradients back; tied weights travel once more.",
        wins="A model that does not fit one device, without any change of its mathematics: equal to single, "
        "batch norms included.",
        breaks="Speed: only one device works at a time. Uneven layers: the fullest device decides.",
        planning=Planning(in_turn=True, one_thread=True, uses_nccl=False),
    ),
    StrategyCard(
        "pipeline",
        "Pipeline",
        "microbatches through stages",
        "Pipeline parallel: each rank holds a stage (or two) of the layers, and microbatches flow through "
        "them so that all ranks work at once.",
        "rankdeck.strategies.pipeline:PipelineParallel",
        PipelineOptions,
        batch_shards=False,
        min_devices=2,
        icon="split-vertical",
        lives="On each rank the weights, gradients and optimizer state of its own stages, and the "
        "activations of the microbatches under way: gpipe m of them, 1f1b p - s on stage s.",
        sends="Per rank and step m x a bytes of activations on and m x a bytes of gradients back for each "
        "cut to another rank, for microbatches of a bytes at the cut.",
        wins="Models too deep for one device on slow links: little is sent, and only to neighbours. The "
        "bubble is (p-1)/(m+p-1) of the step; interleaved and zero-bubble schedules shrink it.",
        breaks="Few microbatches (the bubble grows), uneven stages (all wait for the slowest), and batch "
        "norms (they divide by what one microbatch says; running statistics are the whole batch's).",
        planning=Planning(
            variants=lambda num_devices: [
                {"schedule": schedule} for schedule in ("gpipe", "1f1b", "interleaved-1f1b")
            ],
            label_option="schedule",
            batch_cut=lambda options, num_devices: (1, num_devices),
        ),
    ),
    StrategyCard(
        "pipeline-async",
        "Async pipeline",
        "no flush, stale weights",
        "PipeDream: microbatches never wait for a flush; each stage updates its weights as soon as a "
        "gradient arrives, and keeps the older weights that microbatches under way began with.",
        "rankdeck.strategies.pipeline_async:AsyncPipeline",
        AsyncPipelineOptions,
        batch_shards=False,
        min_devices=2,
        is_stale=True,
        icon="run-all",
        lives="On stage s of p its weights, gradients and optimizer state, p - s versions of its weights "
        "(2bw: two), and the activations of p - s microbatches.",
        sends="Per rank and microbatch a bytes of activations on and a bytes of gradients back for each cut, "
        "for microbatches of a bytes at the cut.",
        wins="Deep pipelines with no bubble at all, where training bears weights that are p - 1 - s updates "
        "old (2bw: exactly one).",
        breaks="Large learning rates: stale gradients overshoot. Tied weights and one norm over all "
        "gradients (clip_norm), because no moment sees all stages at the same update.",
        planning=Planning(variants=lambda num_devices: [{"mode": "stash"}], label_option="mode"),
    ),
    StrategyCard(
        "tensor",
        "Tensor parallel",
        "layers split over devices",
        "Tensor parallel: every device computes the same batch with its columns or rows of each large layer, "
        "and the parts are added up inside every block.",
        "rankdeck.strategies.tensor_parallel:TensorParallel",
        TensorOptions,
        batch_shards=False,
        icon="split-horizontal",
        lives="1/n of the split weights with their gradients and optimizer state on every device, and all of "
        "the rest (norms, positions); the activations between the two layers of a pair are split too.",
        sends="Per rank and step 4 x 2(n-1)/n x A bytes per block, for A = batch x tokens x width x 4 bytes; "
        "once more for the embedding, and (n-1)/n x the logits unless loss_parallel.",
        wins="Layers too large for one device, on links as fast as NVLink: few ranks of one machine.",
        breaks="Slow links: every block waits for its sums. Heads that the devices do not divide, and layers "
        "that are neither Linear nor Embedding (convolutions, fused Conv1D).",
        planning=Planning(
            less_memory=lambda options: (
                {} if options["sequence_parallel"] else {"sequence_parallel": True, "loss_parallel": True}
            ),
            equal_ranks="all",
            late_steps=1,
            waits_for_sends=True,
        ),
    ),
    StrategyCard(
        "hybrid",
        "Hybrid",
        "several axes at once",
        "A mesh of devices with an axis for each kind of parallelism: data x shard x stage x tensor. Without "
        "any size: two stages, and the rest replicas.",
        "rankdeck.strategies.hybrid:Hybrid",
        HybridOptions,
        batch_shards=False,
        min_devices=2,
        icon="type-hierarchy-sub",
        lives="1/(shard x stage x tensor) of weights, gradients and optimizer state on every device; every "
        "replica along data holds the same.",
        sends="Per rank and step the sum of what the axes send: data 2(n-1)/n x g for the g bytes of "
        "gradients that the rank holds, shard as fsdp, stage as pipeline, tensor as tensor.",
        wins="Models that no single axis fits: tensor inside a machine, stages and replicas across machines.",
        breaks="The limits of every axis, and a mesh that leaves each device too little to do. Batch norms "
        "see a device's own samples.",
        planning=Planning(
            variants=usual_meshes,
            batch_cut=lambda options, num_devices: (mesh_sizes.batch_slices(options), options["stage"]),
            equal_ranks="mesh",
            late_steps=1,
            waits_for_sends=True,
            side_streams=True,
        ),
    ),
)

MODELS: Mapping[str, CatalogCard] = _table(
    CatalogCard(
        "mlp",
        "MLP",
        "fully connected",
        "Linear layers with GELU between them.",
        "rankdeck.models.mlp:build",
        MlpArgs,
    ),
    CatalogCard(
        "gpt",
        "GPT",
        "decoder transformer",
        "A pre-norm decoder with causal attention.",
        "rankdeck.models.gpt:build",
        GptArgs,
    ),
    CatalogCard(
        "resnet",
        "ResNet",
        "convolutions, batch norm",
        "Residual networks of depth 18, 34, 50 and 101.",
        "rankdeck.models.resnet:build",
        ResnetArgs,
    ),
)

DATA: Mapping[str, CatalogCard] = _table(
    CatalogCard(
        "digits",
        "Digits",
        "8x8 handwritten digits",
        "1797 handwritten digits that come with scikit-learn.",
        "rankdeck.data.digits:Digits",
        train_samples=1442,
    ),
    CatalogCard(
        "text",
        "Text",
        "files as tokens",
        "Windows of a text; bytes or a BPE vocabulary.",
        "rankdeck.data.text:Text",
        TextArgs,
    ),
    CatalogCard(
        "images",
        "Images",
        "a folder per class",
        "Pictures in one folder per class.",
        "rankdeck.data.images:Images",
        ImagesArgs,
    ),
    CatalogCard(
        "synthetic",
        "Synthetic",
        "made up, adapts",
        "Random inputs that fit the model, with targets that can be learnt.",
        "rankdeck.data.synthetic:Synthetic",
        SyntheticArgs,
    ),
)

MASKED = -100
"""A target with this value counts neither in the loss nor in the number of targets."""

LOSSES: Mapping[str, CatalogCard] = _table(
    CatalogCard(
        "cross_entropy",
        "Cross entropy",
        "classes or tokens",
        "Summed over targets that are not -100.",
        "rankdeck.models.losses:cross_entropy",
    ),
    CatalogCard(
        "mse",
        "Mean squared error",
        "numbers",
        "Summed over the elements of the targets.",
        "rankdeck.models.losses:mse",
    ),
    CatalogCard(
        "model",
        "The model's own",
        "outputs.loss",
        "The loss that the model itself returns.",
        "rankdeck.models.losses:model_loss",
    ),
)

OPTIMIZERS: Mapping[str, CatalogCard] = _table(
    CatalogCard(
        "sgd", "SGD", "momentum optional", "Stochastic gradient descent.", "torch.optim:SGD", SgdArgs
    ),
    CatalogCard(
        "adamw",
        "AdamW",
        "decoupled decay",
        "Adam with decoupled weight decay.",
        "torch.optim:AdamW",
        AdamwArgs,
    ),
    CatalogCard("adam", "Adam", "adaptive", "Adam.", "torch.optim:Adam", AdamArgs),
)

SCHEDULES: Mapping[str, CatalogCard] = _table(
    CatalogCard(
        "constant",
        "Constant",
        "after warm-up",
        "The rate stays.",
        "rankdeck.training.workload:constant",
        WarmupArgs,
    ),
    CatalogCard(
        "cosine",
        "Cosine",
        "half a wave down",
        "The rate falls along half a cosine.",
        "rankdeck.training.workload:cosine",
        CosineArgs,
    ),
    CatalogCard(
        "linear",
        "Linear",
        "straight down",
        "The rate falls in a straight line.",
        "rankdeck.training.workload:linear",
        CosineArgs,
    ),
    CatalogCard(
        "one-cycle",
        "One cycle",
        "up, then down",
        "The rate rises to its peak, then falls to 0.",
        "rankdeck.training.workload:one_cycle",
        OneCycleArgs,
    ),
)


@dataclass(frozen=True)
class OptionField:
    """One option as a form needs it. `kind`: bool | int | float | choice | text | list | table."""

    name: str
    kind: str
    default: Any
    text: str = ""
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    optional: bool = False


_KINDS = {"boolean": "bool", "integer": "int", "number": "float", "array": "list", "object": "table"}


@functools.cache
def option_fields(options: type[BaseModel]) -> tuple[OptionField, ...]:
    """The fields of an options model, in order, with their bounds and choices."""
    schema = options.model_json_schema()["properties"]
    return tuple(
        _option_field(name, info, schema[name], info.description or _text(options, name))
        for name, info in options.model_fields.items()
    )


def _option_field(name: str, info: FieldInfo, schema: JsonObject, text: str) -> OptionField:
    """`schema` is the field's JSON schema."""
    either = schema.get("anyOf", [schema])
    schema = next(one for one in either if one.get("type") != "null")
    is_switch = schema.get("type") == "boolean" and len(either) > 1
    choices = (False, True) if is_switch else tuple(schema.get("enum", ()))
    return OptionField(
        name,
        kind="choice" if choices else _KINDS.get(schema.get("type", ""), "text"),
        default=None if info.is_required() else info.get_default(call_default_factory=True),
        text=text,
        choices=choices,
        minimum=schema.get("minimum", schema.get("exclusiveMinimum")),
        maximum=schema.get("maximum", schema.get("exclusiveMaximum")),
        optional=len(either) > 1,
    )


def _text(options: type[BaseModel], field: str) -> str:
    """What stands below a field, in the class that says most of it."""
    classes = [cls for cls in options.__mro__ if issubclass(cls, BaseModel) and cls is not BaseModel]
    texts = (_texts_below(cls.__module__).get((cls.__name__, field)) for cls in classes)
    return next(filter(None, texts), "")


@functools.cache
def _texts_below(module: str) -> dict[tuple[str, str], str]:
    """(class, field) -> the docstring below the field. Read from the source when a form asks for it: pydantic
    itself (use_attribute_docstrings) would at every import, which takes 35 ms."""
    texts = {}
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for field_and_text in itertools.pairwise(cls.body):
            match field_and_text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[cls.name, name] = " ".join(text.split())
    return texts
