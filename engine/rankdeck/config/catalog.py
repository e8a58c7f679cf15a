"""The catalog: strategies, models, datasets, losses, optimizers and schedules as tables.

Each row is a spec: a name, display texts, the options as a pydantic model, and a lazy target
("package.module:attribute"), which is imported only on the ranks that use it. A new row becomes available in
configurations, on the command line and in the app. The catalog is the only registry; no module is scanned for
entries. Read schema.py next.
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
from rankdeck.config.planning import StrategyPlanning, candidate_meshes, uses_native_ddp


class Options(BaseModel):
    """Base class for the options of a spec; unknown names are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


Positive = Annotated[int, Field(ge=1, lt=2**31)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Rate = Annotated[float, Field(gt=0)]


class NoOptions(Options):
    pass


class DpOptions(Options):
    parallel_loss: bool = False
    """Compute the loss on each device, so that device 0 gathers losses instead of outputs."""


class DdpOptions(Options):
    sync: Literal["native", "ring", "reduce-broadcast", "all-to-all"] = "native"
    """How gradients are synchronized. native: bucketed all-reduce that overlaps the backward pass. The other
    choices run after the backward pass."""
    compress: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Compression of gradients on the wire. fp16 and bf16 halve the bytes; powersgd sends a low-rank
    approximation."""
    powersgd_rank: Annotated[int, Field(ge=1, le=64)] = 4
    """Rank of PowerSGD's approximation: a higher rank is more accurate and sends more bytes."""
    bucket_mb: Annotated[float, Field(gt=0, le=1024)] = 25.0
    """Size of a gradient bucket in MiB. With native sync and powersgd, there is only one bucket."""
    find_unused_parameters: bool = False
    """Allow parameters that do not contribute to the loss; costs one more exchange per step."""
    static_graph: bool = False
    """Promise that every step uses the same parameters, so that native sync finds unused ones only once."""
    gradient_as_bucket_view: bool = False
    """Make gradients views of the buckets: saves one copy of all gradients."""
    sync_batchnorm: bool = False
    """Normalize over the batches of all ranks, as a single device would."""


class FsdpOptions(Options):
    reshard: bool = True
    """Free a block's gathered weights after its forward pass and gather them again for its backward pass:
    saves memory, sends more bytes."""
    find_unused_parameters: bool = False
    """Has no effect: with fsdp, ranks may always use different parameters."""
    sync_batchnorm: bool = False
    """Normalize over the batches of all ranks, as a single device would."""


class TensorOptions(Options):
    plan: dict[str, Literal["column", "row"]] | None = Field(
        None, examples=[{"*.up": "column", "*.down": "row"}]
    )
    """Layers to split, by name pattern. By default, Rankdeck finds the layers of transformer blocks."""
    sequence_parallel: bool = False
    """Split activations between layers along the sequence: saves memory, sends the same bytes."""
    loss_parallel: bool = False
    """Compute the cross entropy on split logits instead of gathering them."""


class CutOptions(Options):
    cuts: list[str | int] | None = Field(None, examples=[["blocks.2", "head"]])
    """First layers of the stages, by name or index. By default the stages are balanced."""
    balance: Literal["parameters", "time", "activations"] = "parameters"
    """Quantity by which stages are balanced: number of weights, time of the forward pass, or activation
    memory."""


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
    """Order in which stages run the forward and backward passes of the microbatches. 1f1b-by-hand does the
    same as 1f1b in one readable function; the others use torch's schedules."""
    microbatches: Positive | None = Field(None, examples=[8])
    """Microbatches per batch. By default, the possible number closest to twice the number of stages."""


class MeshOptions(Options):
    data: Positive = 1
    """Number of replicas. Gradients are summed over this axis after the backward pass."""
    shard: Positive = 1
    """Number of slices of every weight, gathered block by block as in fsdp."""
    stage: Positive = 1
    """Number of pipeline stages."""
    tensor: Positive = 1
    """Number of slices of every large layer, as in the tensor strategy."""


class HybridOptions(PipelineOptions, MeshOptions):
    sync: Literal["native", "ring", "reduce-broadcast", "all-to-all"] = "native"
    """How gradients are synchronized over the data axis."""
    compress: Literal["none", "fp16", "bf16", "powersgd"] = "none"
    """Compression of gradients on the data axis."""
    reshard: bool = True
    """For shard: free a block's gathered weights after its forward pass. Pipeline stages keep them."""
    plan: dict[str, Literal["column", "row"]] | None = Field(
        None, examples=[{"*.up": "column", "*.down": "row"}]
    )
    """For tensor: layers to split, by name pattern. By default, Rankdeck finds the layers of transformer
    blocks."""
    sequence_parallel: bool = False
    """For tensor: split activations between layers along the sequence."""
    loss_parallel: bool = False
    """For tensor: compute the cross entropy on split logits."""


class AsyncPipelineOptions(CutOptions):
    mode: Literal["stash", "2bw"] = "stash"
    """stash: keep a version of the weights for each microbatch in flight. 2bw: keep two versions and update
    one step late."""


class MlpArgs(Options):
    hidden: list[Positive] = [256, 256]
    """Widths of the hidden layers."""
    classes: Positive | None = Field(None, examples=[10])
    """Number of classes. By default, taken from the data."""
    dropout: Fraction = 0.0
    """Probability of dropping an activation."""


class GptArgs(Options):
    layers: Positive = 4
    """Number of transformer blocks."""
    heads: Positive = 4
    """Attention heads per block."""
    width: Positive = 128
    """Embedding dimension; a multiple of heads."""
    context: Positive = 128
    """Maximum sequence length in tokens."""
    vocabulary: Positive | None = Field(None, examples=[256])
    """Size of the vocabulary. By default, taken from the data."""
    tied: bool = False
    """Share the weights of the embedding with the output layer."""
    dropout: Fraction = 0.0
    """Probability of dropping an activation."""


class ResnetArgs(Options):
    depth: Literal[18, 34, 50, 101] = 18
    """Number of layers."""
    classes: Positive | None = Field(None, examples=[10])
    """Number of classes. By default, taken from the data."""
    stem: Literal["imagenet", "small"] = "imagenet"
    """First layers. imagenet: a 7x7 convolution and a pooling layer. small: a 3x3 convolution, for small
    images."""


class TextArgs(Options):
    path: str = "@stdlib"
    """A file or a folder. @stdlib is the source code of the running Python."""
    vocabulary: Annotated[int, Field(ge=256, le=65536)] = 256
    """Size of the vocabulary. 256: one token per byte. More: a BPE vocabulary of that size."""
    context: Positive | None = Field(None, examples=[128])
    """Tokens per sample. By default, taken from the model."""


class ImagesArgs(Options):
    path: str = Field(examples=["~/images"])
    """A folder with one subfolder per class, or with such folders under train/ and val/."""
    size: Annotated[int, Field(ge=8, le=1024)] = 224
    """Height and width in pixels."""


class SyntheticArgs(Options):
    samples: Positive = 4096
    """Number of training samples."""
    classes: Positive | None = Field(None, examples=[10])
    """Number of classes. By default, taken from the model."""
    masked: Fraction = 0.0
    """Fraction of targets that are masked (-100)."""


class SgdArgs(Options):
    lr: Rate = 0.1
    """Learning rate."""
    momentum: Fraction = 0.0
    """Momentum factor."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay (L2 penalty)."""
    nesterov: bool = False
    """Use Nesterov momentum."""
    foreach: bool | None = None
    """Update many tensors per kernel, with temporary copies of their size. torch does so on GPUs unless this
    is false."""
    fused: bool | None = None
    """Update all tensors in one kernel without temporary copies."""


class AdamArgs(Options):
    lr: Rate = 1e-3
    """Learning rate."""
    betas: tuple[Fraction, Fraction] = (0.9, 0.999)
    """Decay rates of the running averages of the gradient and of its square."""
    eps: Rate = 1e-8
    """Term added to the denominator for numerical stability."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay."""
    foreach: bool | None = None
    """Update many tensors per kernel, with temporary copies of their size. torch does so on GPUs unless this
    is false."""
    fused: bool | None = None
    """Update all tensors in one kernel without temporary copies."""


class AdamwArgs(AdamArgs):
    weight_decay: Annotated[float, Field(ge=0)] = 0.01
    """Decoupled weight decay."""


class WarmupArgs(Options):
    warmup: Annotated[int, Field(ge=0)] = 0
    """Steps over which the learning rate rises from 0; 0 turns the warm-up off."""


class CosineArgs(WarmupArgs):
    final: Annotated[float, Field(ge=0, le=1)] = 0.0
    """Final learning rate as a fraction of lr."""


class OneCycleArgs(Options):
    rise: Fraction = 0.3
    """Fraction of the steps over which the learning rate rises."""


@dataclass(frozen=True)
class CatalogSpec:
    """A row of the catalog.

    `target` is "module:attribute", and `hint` has at most four words. `train_samples` is set for a dataset of
    fixed size.
    """

    name: str
    title: str
    hint: str
    summary: str
    target: str
    options: type[Options] = NoOptions
    train_samples: int | None = None

    def load(self) -> Any:
        """Import the target's module and return the target."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)


@dataclass(frozen=True)
class StrategySpec(CatalogSpec):
    """A row of the catalog that describes a strategy.

    `one_process`: one rank drives all devices. `one_device`: only the first device is used.
    `is_batch_sharded`: the batch is split across the devices. `min_devices`: the smallest number of devices
    that the strategy accepts. `is_stale`: gradients are computed with older weights, so results differ from
    those of training on one device.
    """

    one_process: bool = False
    one_device: bool = False
    is_batch_sharded: bool = True
    min_devices: int = 1
    is_stale: bool = False
    icon: str = "server"
    placement: str = ""
    communication: str = ""
    strengths: str = ""
    limits: str = ""
    planning: StrategyPlanning = field(default_factory=StrategyPlanning)

    @property
    def has_mesh(self) -> bool:
        """Whether the strategy's options include the sizes of mesh axes."""
        return issubclass(self.options, MeshOptions)

    def non_default_options(self, options: Mapping[str, Any]) -> dict[str, object]:
        """Return the options that differ from their defaults."""
        defaults = self.options().model_dump()
        return {name: value for name, value in options.items() if defaults.get(name) != value}

    def batch_split(self, options: Mapping[str, Any], num_devices: int) -> tuple[int, int]:
        """Return (number of batch slices, number of stages that exchange microbatches)."""
        if self.planning.batch_split is not None:
            return self.planning.batch_split(options, num_devices)
        return (num_devices if self.is_batch_sharded else 1), 1


def _table(*specs: Any) -> Mapping[str, Any]:
    # Read-only, because every module shares these tables.
    return types.MappingProxyType({spec.name: spec for spec in specs})


STRATEGIES: Mapping[str, StrategySpec] = _table(
    StrategySpec(
        "single",
        "Single",
        "one device",
        "One device holds everything. The reference that the other strategies are compared with.",
        "rankdeck.strategies.single:Single",
        one_process=True,
        one_device=True,
        is_batch_sharded=False,
        icon="primitive-square",
        placement="Everything is on one device.",
        communication="0 bytes per step.",
        strengths="The model and its batch fit on one device, and one device is fast enough.",
        limits="The model or the batch does not fit on one device.",
        planning=StrategyPlanning(is_sequential=True, has_one_thread=True),
    ),
    StrategySpec(
        "dp",
        "DP",
        "threads, device 0 gathers",
        "DataParallel: one process splits the batch, copies the model to every device in each step, "
        "and gathers the outputs on device 0.",
        "rankdeck.strategies.data_parallel:DataParallel",
        DpOptions,
        one_process=True,
        icon="type-hierarchy",
        placement="Weights, gradients and optimizer state are on device 0. During a step, every other device "
        "has a copy of the weights.",
        communication="Per step, for each other device: P bytes of weights out, P bytes of gradients back, "
        "inputs out and outputs back.",
        strengths="A quick try on two devices; ddp is better in nearly every other case. parallel_loss "
        "gathers losses instead of outputs.",
        limits="Device 0 runs out of memory first, because it holds the gathered outputs, the loss and the "
        "optimizer state while the other devices idle. Batch norm only sees the samples of its own "
        "device.",
        planning=StrategyPlanning(
            variants=lambda num_devices: [{}, {"parallel_loss": True}],
            less_memory=lambda options: {} if options["parallel_loss"] else {"parallel_loss": True},
            has_one_thread=True,
            waits_for_sends=True,
        ),
    ),
    StrategySpec(
        "ddp",
        "DDP",
        "one process per device",
        "DistributedDataParallel: every rank holds a replica of the model, and gradients are "
        "all-reduced in buckets during the backward pass.",
        "rankdeck.strategies.ddp:Ddp",
        DdpOptions,
        icon="multiple-windows",
        placement="Every device holds all weights, gradients and optimizer state, and buckets of gradients.",
        communication="Per rank and step, for G bytes of gradients: 2(n-1)/n x G (native, ring), (n-1) x G "
        "(all-to-all); reduce-broadcast sends (n-1) x G from rank 0 and G from every other rank. "
        "fp16 and bf16 halve G.",
        strengths="The model fits on one device. Memory is equal on all devices, and the speed-up is close "
        "to linear.",
        limits="Weights, gradients and optimizer state do not fit on one device, or links are slow and "
        "batches small. Batch norm only sees the samples of its own device unless sync_batchnorm is set.",
        planning=StrategyPlanning(
            variants=lambda num_devices: [{}, {"gradient_as_bucket_view": True}],
            less_memory=lambda options: (
                {"gradient_as_bucket_view": True}
                if uses_native_ddp(options) and not options["gradient_as_bucket_view"]
                else {}
            ),
            equal_ranks="all",
            stand_in=lambda options: "single" if uses_native_ddp(options) else None,
        ),
    ),
    StrategySpec(
        "fsdp",
        "FSDP",
        "weights in slices",
        "Fully sharded data parallel: every rank keeps a slice of every weight, and gathers one "
        "block at a time while it computes with it.",
        "rankdeck.strategies.fsdp:Fsdp",
        FsdpOptions,
        icon="pie-chart",
        placement="Every device holds 1/n of the weights, gradients and optimizer state, the block that is "
        "currently gathered, and the layers that are in no block (embeddings, head).",
        communication="Per rank and step, for P bytes of weights and G of gradients: (n-1)/n x (2P + G); "
        "without reshard, (n-1)/n x (P + G). gloo sends 2G instead of G.",
        strengths="The model does not fit on one device. Memory per device falls as devices are added.",
        limits="Links are slow: weights are sent in every forward and backward pass. A model without "
        "repeated blocks is gathered all at once. Batch norm only sees the samples of its own device "
        "unless sync_batchnorm is set.",
        planning=StrategyPlanning(
            variants=lambda num_devices: [{}, {"reshard": False}],
            less_memory=lambda options: {} if options["reshard"] else {"reshard": True},
            equal_ranks="slices",
            has_side_streams=True,
        ),
    ),
    StrategySpec(
        "model",
        "Model parallel",
        "layers on different devices",
        "Layer split: one process puts consecutive layers on different devices, and sends each batch "
        "through all of them in turn.",
        "rankdeck.strategies.model_parallel:ModelParallel",
        CutOptions,
        one_process=True,
        is_batch_sharded=False,
        icon="layers",
        placement="Each device holds the weights, gradients, optimizer state and activations of its own "
        "layers.",
        communication="Per step and cut, 2 x A bytes: A bytes of activations of the whole batch forward, "
        "and A bytes of gradients back. Tied weights are sent once more.",
        strengths="The model does not fit on one device, and the result must equal that of single exactly, "
        "even with batch norm.",
        limits="Only one device computes at a time. With uneven layers, the fullest device sets the limit.",
        planning=StrategyPlanning(is_sequential=True, has_one_thread=True, uses_nccl=False),
    ),
    StrategySpec(
        "pipeline",
        "Pipeline",
        "microbatches through stages",
        "Pipeline parallel: each rank holds one or two stages of the layers, and microbatches flow "
        "through the stages so that all ranks compute at once.",
        "rankdeck.strategies.pipeline:PipelineParallel",
        PipelineOptions,
        is_batch_sharded=False,
        min_devices=2,
        icon="split-vertical",
        placement="Each rank holds the weights, gradients and optimizer state of its own stages, and the "
        "activations of the microbatches in flight: m of them with gpipe, p - s on stage s with "
        "1f1b.",
        communication="Per rank and step, for each cut to another rank: m x a bytes of activations forward "
        "and m x a bytes of gradients back, for m microbatches of size a at the cut.",
        strengths="The model is too deep for one device and links are slow: little is sent, and only between "
        "neighbors. The bubble is (p-1)/(m+p-1) of the step; interleaved and zero-bubble schedules "
        "shrink it.",
        limits="Few microbatches make the bubble large, and all ranks wait for the slowest stage. Batch "
        "norm normalizes over a single microbatch; its running statistics are those of the whole "
        "batch.",
        planning=StrategyPlanning(
            variants=lambda num_devices: [
                {"schedule": schedule} for schedule in ("gpipe", "1f1b", "interleaved-1f1b")
            ],
            label_option="schedule",
            batch_split=lambda options, num_devices: (1, num_devices),
        ),
    ),
    StrategySpec(
        "pipeline-async",
        "Async pipeline",
        "no flush, stale weights",
        "PipeDream: microbatches never wait for a flush. Each stage updates its weights as soon as a "
        "gradient arrives, and keeps the older weights that microbatches in flight started with.",
        "rankdeck.strategies.pipeline_async:AsyncPipeline",
        AsyncPipelineOptions,
        is_batch_sharded=False,
        min_devices=2,
        is_stale=True,
        icon="run-all",
        placement="Stage s of p holds its weights, gradients and optimizer state, p - s versions of its "
        "weights (2bw: two), and the activations of p - s microbatches.",
        communication="Per rank and microbatch, for each cut: the activations of the microbatch at the cut "
        "forward, and as many bytes of gradients back.",
        strengths="Deep pipelines without a bubble, if training tolerates weights that are p - 1 - s updates "
        "old (2bw: one update).",
        limits="Stale gradients overshoot at large learning rates. Tied weights and clip_norm are refused, "
        "because the stages are never at the same update.",
        planning=StrategyPlanning(variants=lambda num_devices: [{"mode": "stash"}], label_option="mode"),
    ),
    StrategySpec(
        "tensor",
        "Tensor parallel",
        "layers split over devices",
        "Tensor parallel: every device computes the same batch with its columns or rows of each "
        "large layer, and the partial results are summed inside every block.",
        "rankdeck.strategies.tensor_parallel:TensorParallel",
        TensorOptions,
        is_batch_sharded=False,
        icon="split-horizontal",
        placement="Every device holds 1/n of the split weights with their gradients and optimizer state, and "
        "all other weights (norms, positions). The activations between the two layers of a pair are "
        "split too.",
        communication="Per rank and step, 4 x 2(n-1)/n x A bytes per block, for A = batch x tokens x width x "
        "4 bytes. A split vocabulary adds 2 x 2(n-1)/n x A, and the logits add (n-1)/n of their size "
        "unless loss_parallel is set.",
        strengths="Single layers are too large for one device, and links are as fast as NVLink: a few ranks "
        "of one machine.",
        limits="Links are slow: every block waits for its sums. The number of devices must divide the "
        "attention heads. Layers other than Linear and Embedding (convolutions, fused Conv1D) are "
        "not split.",
        planning=StrategyPlanning(
            less_memory=lambda options: (
                {} if options["sequence_parallel"] else {"sequence_parallel": True, "loss_parallel": True}
            ),
            equal_ranks="all",
            extra_steps=1,
            waits_for_sends=True,
        ),
    ),
    StrategySpec(
        "hybrid",
        "Hybrid",
        "several axes at once",
        "A mesh of devices with an axis for each kind of parallelism: data x shard x stage x tensor. "
        "Without any size: two stages, and replicas of them on the other devices.",
        "rankdeck.strategies.hybrid:Hybrid",
        HybridOptions,
        is_batch_sharded=False,
        min_devices=2,
        icon="type-hierarchy-sub",
        placement="Every device holds 1/(shard x stage x tensor) of the weights, gradients and optimizer "
        "state. Replicas along data hold the same slices.",
        communication="Per rank and step, the sum over the axes: data sends 2(n-1)/n x g for the g bytes of "
        "gradients on the rank; shard, stage and tensor send as much as fsdp, pipeline and tensor.",
        strengths="No single axis makes the model fit: use tensor inside a machine, and stages and "
        "replicas across machines.",
        limits="The limits of every axis apply, and a large mesh leaves each device little to do. Batch "
        "norm only sees the samples of its own device.",
        planning=StrategyPlanning(
            variants=candidate_meshes,
            batch_split=lambda options, num_devices: (mesh_sizes.num_batch_slices(options), options["stage"]),
            equal_ranks="mesh",
            extra_steps=1,
            waits_for_sends=True,
            has_side_streams=True,
        ),
    ),
)

MODELS: Mapping[str, CatalogSpec] = _table(
    CatalogSpec(
        "mlp",
        "MLP",
        "fully connected",
        "Linear layers with GELU between them.",
        "rankdeck.models.mlp:build",
        MlpArgs,
    ),
    CatalogSpec(
        "gpt",
        "GPT",
        "decoder transformer",
        "A pre-norm decoder with causal attention.",
        "rankdeck.models.gpt:build",
        GptArgs,
    ),
    CatalogSpec(
        "resnet",
        "ResNet",
        "convolutions, batch norm",
        "Residual networks of depth 18, 34, 50 and 101.",
        "rankdeck.models.resnet:build",
        ResnetArgs,
    ),
)

DATA: Mapping[str, CatalogSpec] = _table(
    CatalogSpec(
        "digits",
        "Digits",
        "8x8 handwritten digits",
        "1797 handwritten digits that come with scikit-learn.",
        "rankdeck.data.digits:Digits",
        train_samples=1442,
    ),
    CatalogSpec(
        "text",
        "Text",
        "files as tokens",
        "Windows of a text; bytes or a BPE vocabulary.",
        "rankdeck.data.text:Text",
        TextArgs,
    ),
    CatalogSpec(
        "images",
        "Images",
        "a folder per class",
        "Pictures in one folder per class.",
        "rankdeck.data.images:Images",
        ImagesArgs,
    ),
    CatalogSpec(
        "synthetic",
        "Synthetic",
        "made up, adapts",
        "Random inputs that fit the model, with targets that can be learnt.",
        "rankdeck.data.synthetic:Synthetic",
        SyntheticArgs,
    ),
)

# torch's default ignore_index.
IGNORE_INDEX = -100
"""Value of the targets to ignore: they count toward neither the loss nor the number of targets."""

LOSSES: Mapping[str, CatalogSpec] = _table(
    CatalogSpec(
        "cross_entropy",
        "Cross entropy",
        "classes or tokens",
        "Summed over targets that are not -100.",
        "rankdeck.models.losses:cross_entropy",
    ),
    CatalogSpec(
        "mse",
        "Mean squared error",
        "numbers",
        "Summed over the elements of the targets.",
        "rankdeck.models.losses:mse",
    ),
    CatalogSpec(
        "model",
        "The model's own",
        "outputs.loss",
        "The loss that the model itself returns.",
        "rankdeck.models.losses:model_loss",
    ),
)

OPTIMIZERS: Mapping[str, CatalogSpec] = _table(
    CatalogSpec(
        "sgd", "SGD", "momentum optional", "Stochastic gradient descent.", "torch.optim:SGD", SgdArgs
    ),
    CatalogSpec(
        "adamw",
        "AdamW",
        "decoupled decay",
        "Adam with decoupled weight decay.",
        "torch.optim:AdamW",
        AdamwArgs,
    ),
    CatalogSpec("adam", "Adam", "adaptive", "Adam.", "torch.optim:Adam", AdamArgs),
)

SCHEDULES: Mapping[str, CatalogSpec] = _table(
    CatalogSpec(
        "constant",
        "Constant",
        "after warm-up",
        "The rate stays constant.",
        "rankdeck.training.workload:constant",
        WarmupArgs,
    ),
    CatalogSpec(
        "cosine",
        "Cosine",
        "half a wave down",
        "The rate falls along half a cosine.",
        "rankdeck.training.workload:cosine",
        CosineArgs,
    ),
    CatalogSpec(
        "linear",
        "Linear",
        "straight down",
        "The rate falls in a straight line.",
        "rankdeck.training.workload:linear",
        CosineArgs,
    ),
    CatalogSpec(
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
    """An option as a form shows it. `kind`: bool | int | float | choice | text | list | table."""

    name: str
    kind: str
    default: Any
    text: str = ""
    choices: tuple[Any, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    excludes_minimum: bool = False
    optional: bool = False
    example: Any = None


_KINDS = {"boolean": "bool", "integer": "int", "number": "float", "array": "list", "object": "table"}


@functools.cache
def option_fields(options: type[BaseModel]) -> tuple[OptionField, ...]:
    """Return the fields of an options model, in their declared order, with bounds and choices."""
    schema = options.model_json_schema()["properties"]
    return tuple(
        _option_field(name, info, schema[name], info.description or _field_docstring(options, name))
        for name, info in options.model_fields.items()
    )


def _option_field(name: str, info: FieldInfo, schema: JsonObject, text: str) -> OptionField:
    """Build an option from a field; `schema` is the field's JSON schema."""
    either = schema.get("anyOf", [schema])
    schema = next(variant for variant in either if variant.get("type") != "null")
    # An optional boolean has three states (unset, false, true), so a form shows it as a choice.
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
        excludes_minimum="exclusiveMinimum" in schema,
        optional=len(either) > 1,
        example=next(iter(info.examples or ()), None),
    )


def _field_docstring(options: type[BaseModel], field: str) -> str:
    """Return the docstring below a field, from the most derived class in which the field has one."""
    # An inherited field has its docstring in the source of a base class.
    classes = [cls for cls in options.__mro__ if issubclass(cls, BaseModel) and cls is not BaseModel]
    texts = (_field_docstrings(cls.__module__).get((cls.__name__, field)) for cls in classes)
    return next(filter(None, texts), "")


@functools.cache
def _field_docstrings(module: str) -> dict[tuple[str, str], str]:
    """Return the docstrings below fields, by (class, field).

    They are parsed from the source when a form needs them. pydantic's use_attribute_docstrings would parse
    them at every import, which takes 35 ms.
    """
    texts = {}
    tree = ast.parse(inspect.getsource(importlib.import_module(module)))
    for cls in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for field_and_text in itertools.pairwise(cls.body):
            match field_and_text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    texts[cls.name, name] = " ".join(text.split())
    return texts
