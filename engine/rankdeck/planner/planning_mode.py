"""Set up torch so that strategies can build and train a model on fake tensors as they do on real ones.

Changes to torch are in torch_compat/fake_mode_patches.py and ddp.py. `PlanBackend` supplies what strategies
request: real meshes, PlannedDdp as the wrapper for ddp, fake tensors instead of a model on "meta", and the
attention masks that Hugging Face models use in a run. If DDP cannot be traced, the plan for the strategy
`ddp` is that for `single` plus a set of gradient buckets (see rank_plan.py). Read fake_pass.py first.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

from rankdeck.config import RunConfig
from rankdeck.data.base import SampleSet
from rankdeck.data.loader import read_samples
from rankdeck.parallel.mesh import Backend, Mesh
from rankdeck.parallel.pytree import map_tensors
from rankdeck.planner.fake_values import MASKING_MODULE
from rankdeck.planner.samples import Samples, list_leaves, map_leaves, resize_leaf, sizes_of
from rankdeck.planner.value_answers import name_modules
from rankdeck.torch_compat import fake_mode_patches as changes
from rankdeck.torch_compat.attribute_patches import AttributePatches
from rankdeck.torch_compat.ddp import PlannedDdp
from rankdeck.torch_compat.dispatch import without_modes
from rankdeck.training.workload import merge_sample, read_user_sample


@contextlib.contextmanager
def planning_mode(
    *, like_cuda: bool, initial_values: bool = False, on_model_built: Callable[[], None] = lambda: None
) -> Iterator[Backend]:
    """Enter a context in which strategies build and train models on fake tensors, as on a GPU with NCCL
    (`like_cuda`) or on a CPU with gloo; yield the strategies' backend.

    `on_model_built` is called after each model is built. If `initial_values` is true, the weights are
    initialised, so that the model also works on real tensors.
    """
    replaced = AttributePatches()
    try:
        changes.patch_module_apply(replaced)
        if not initial_values:
            changes.patch_init(replaced)
        changes.patch_deepcopy(replaced)
        changes.patch_file_readers(replaced)
        changes.patch_device_mesh(replaced)
        changes.patch_empty_chunks(replaced)
        changes.patch_broadcast_objects(replaced)
        # Only gloo's handle of a send keeps the tensor alive; NCCL's does not.
        if not like_cuda:
            changes.patch_isend(replaced)
        yield PlanBackend(replaced, on_model_built)
    finally:
        replaced.restore()


class PlanBackend(Backend):
    """Backend that strategies use in a plan, where the model's tensors are fake."""

    def __init__(self, replaced: AttributePatches, built: Callable[[], None]) -> None:
        self._replaced = replaced
        self._on_model_built = built

    def build_model(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """Build the model so that Hugging Face's code does not mistake fake tensors for a sign of tracing.

        If that code detects tracing, it never skips attention masks.
        """
        model = name_modules(changes.replace_real_tensors(model_fn()))
        self._on_model_built()
        masking = sys.modules.get(MASKING_MODULE)
        if masking is not None and hasattr(masking, "is_tracing"):
            self._replaced.patch(masking, "is_tracing", lambda tensor=None: False)
        return model

    def build_on_meta(self, model_fn: Callable[[], nn.Module]) -> nn.Module:
        """Build the model on fake tensors, because tensors on "meta" would not be fake; neither kind needs
        memory."""
        return changes.replace_real_tensors(model_fn())

    def device_mesh(self, mesh: Mesh, device_type: str) -> DeviceMesh:
        result: DeviceMesh = changes.with_real_tensors(super().device_mesh)(mesh, device_type)
        return result

    def wrap_ddp(self, module: nn.Module, **options: Any) -> DistributedDataParallel:
        return PlannedDdp(module, **options)


# Fake tensors on "cpu" that allocate like CUDA's kernels where those differ from the CPU's:
#
#     dropout        keeps a byte per element, not a mask in the input's type
#     attention      flash or memory-efficient: no matrix of scores, but the sums of each row
#     autocast       layer norms, softmax, losses and a few more compute in fp32
#
# Functions are patched instead of using a TorchFunctionMode, because the mode is off inside backward(), where
# activation checkpointing recomputes.
#
# Source: torch's ATen/autocast_mode.h (the lists) and transformers/cuda/sdp_utils.cpp (which attention).

_aten = torch.ops.aten
_HALVES = (torch.float16, torch.bfloat16)
_FLASH_HEAD_WIDTH = 256
_FP32_FUNCTIONS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (
        F,
        (
            "layer_norm",
            "group_norm",
            "rms_norm",
            "softmax",
            "log_softmax",
            "nll_loss",
            "cross_entropy",
            "mse_loss",
            "l1_loss",
            "smooth_l1_loss",
            "binary_cross_entropy_with_logits",
        ),
    ),
    (torch, ("softmax", "log_softmax", "exp", "log", "pow", "rsqrt", "sum", "cumsum", "prod", "norm")),
    (Tensor, ("softmax", "log_softmax", "exp", "log", "pow", "rsqrt", "sum", "cumsum", "prod", "norm")),
)


@contextlib.contextmanager
def emulate_cuda(precision: str, *, enabled: bool = True) -> Iterator[None]:
    """Enter a context in which fake tensors need as much memory as on a GPU; if `enabled` is false, the
    context has no effect. `precision` is the run's precision."""
    if not enabled:
        yield
        return
    replaced = AttributePatches()
    try:
        replaced.patch(F, "dropout", _make_dropout(F.dropout))
        replaced.patch(F, "scaled_dot_product_attention", _make_attention())
        if precision in ("bf16", "fp16"):
            for owner, names in _FP32_FUNCTIONS:
                for name in names:
                    replaced.patch(owner, name, _in_fp32(getattr(owner, name)))
        yield
    finally:
        replaced.restore()


def _make_dropout(original: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def dropout(input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:  # noqa: A002
        if not training or p == 0 or inplace:
            return original(input, p, training, inplace)
        return torch.native_dropout(input, p, True)[0]

    return dropout


def _make_attention() -> Callable[..., Tensor]:
    def attention(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        # These kernels are called directly, below autocast, which would have cast their inputs.
        if torch.is_autocast_enabled("cpu"):
            half = torch.get_autocast_dtype("cpu")
            query, key, value = query.to(half), key.to(half), value.to(half)
        kernel = attention_kernel(query, attn_mask, enable_gqa=enable_gqa)
        # The fused kernels take (batch, heads, tokens, width) only.
        if query.dim() != 4 or kernel == "math":
            results = _aten._scaled_dot_product_attention_math(
                query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
            )
        elif kernel == "flash":
            results = _aten._scaled_dot_product_flash_attention(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )
        else:
            bias = _bias_of(attn_mask, query, key)
            results = _aten._scaled_dot_product_efficient_attention(
                query, key, value, bias, query.requires_grad, dropout_p, is_causal, scale=scale
            )
        attended: Tensor = results[0]
        return attended

    return attention


def attention_kernel(query: Tensor, mask: Tensor | None, *, enable_gqa: bool = False) -> str:
    """Return the attention kernel that a GPU from 2020 or later would use: flash | efficient | math.

    Flash needs 16-bit inputs and no mask; the efficient kernel needs rows whose size is a multiple of 16
    bytes.
    """
    width, is_half = query.shape[-1], query.dtype in _HALVES
    if is_half and mask is None and width <= _FLASH_HEAD_WIDTH:
        return "flash"
    whole_rows = width * query.element_size() % 16 == 0
    if query.dtype in (*_HALVES, torch.float32) and whole_rows and not enable_gqa:
        return "efficient"
    return "math"


def _bias_of(mask: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """Return a mask in the efficient kernel's form: values to add, expanded over batch and heads."""
    if mask is None:
        return None
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(mask.logical_not(), float("-inf"))
    return mask.to(query.dtype).expand(*query.shape[:-1], key.shape[-2])


def _in_fp32(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def computed(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_autocast_enabled("cpu"):
            return function(*args, **kwargs)
        args = tuple(_to_fp32(value) for value in args)
        kwargs = {name: _to_fp32(value) for name, value in kwargs.items()}
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return computed


def _to_fp32(value: Any) -> Any:
    return value.float() if isinstance(value, Tensor) and value.dtype in _HALVES else value


# Data sets of a plan: batches of fake tensors, with the shapes of a run's largest batches.
#
# For a user's own data the largest real batch of each size is read, so that its structure, and numbers
# outside its tensors, are as in the run.


def planned_dataset(train: SampleSet, samples: Samples, config: RunConfig) -> SampleSet:
    """Return the data set that replaces a user's own data set in a plan."""
    if samples.is_uniform:
        return ShapeDataset(read_user_sample(train, 0), len(train))
    return LargestBatchDataset(train, samples, config)


class ShapeDataset:
    """Stand-in for a data set whose samples all have one shape; batches stack samples of that shape."""

    is_random = False

    def __init__(self, sample: Any, num_samples: int) -> None:
        self._sample = sample
        self._num_samples = num_samples

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Any:
        return map_tensors(self.read_batch([index]), lambda tensor: tensor[0])

    def read_batch(self, indices: Sequence[Any]) -> Any:
        """Return a batch as the loader would: a tensor of shape (1, ...) in the sample becomes (B, ...) in
        the batch."""
        return map_tensors(
            self._sample, lambda tensor: resize_leaf(tensor, (len(indices), *tensor.shape[1:]))
        )


class LargestBatchDataset:
    """Data set that replaces a user's own and has one batch for each number of samples: the run's batch with
    the most elements, enlarged where another batch is longer in a dim."""

    is_random = False

    def __init__(self, train: SampleSet, samples: Samples, config: RunConfig) -> None:
        self._train, self._samples, self._config = train, samples, config
        self._largest: dict[int, tuple[Any, list[tuple[int, ...]]]] = {}
        """For each number of samples, the batch with the most elements and the sizes to which its leaves are
        resized."""

    def __len__(self) -> int:
        return len(self._train)

    def __getitem__(self, index: int) -> Any:
        return self.read_batch([index])

    def read_batch(self, indices: Sequence[Any]) -> Any:
        """Return the batch of `len(indices)` samples with the most elements in the run, enlarged where
        another batch is longer in a dim. The indices themselves are ignored."""
        num = len(indices)
        if num not in self._largest:
            # User code reads real data: inside fake mode it would get fake tensors.
            with without_modes():
                self._largest[num] = self._read(num)
        batch, sizes = self._largest[num]
        rest = iter(sizes)
        return map_leaves(batch, lambda leaf: resize_leaf(leaf, next(rest)))

    def _read(self, num: int) -> tuple[Any, list[tuple[int, ...]]]:
        largest = self._samples.largest_batch(num, self._config)
        batch = merge_sample(read_samples(self._train, largest.indices))
        leaves = list_leaves(batch)
        own_sizes = [sizes_of(leaf) for leaf in leaves]
        without_values = map_leaves(batch, lambda leaf: leaf.to("meta") if isinstance(leaf, Tensor) else leaf)
        if largest.sizes is None or len(largest.sizes) != sum(map(len, own_sizes)):
            return without_values, own_sizes
        rest = iter(largest.sizes)
        return without_values, [tuple(max(size, next(rest)) for size in sizes) for sizes in own_sizes]
