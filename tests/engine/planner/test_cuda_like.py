"""What CUDA's kernels keep for backward, made by fake tensors on "cpu"."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from rankdeck.config import from_text
from rankdeck.memory.ledger import Ledger
from rankdeck.planner.fake_pass import PassRequest, fake_pass
from rankdeck.planner.planning_mode import attention_kernel, emulate_cuda


def kept_bytes(run: Callable[[], Tensor], precision: str = "fp32") -> int:
    """Bytes that live after `run`, beside its inputs."""
    ledger = Ledger(1)
    with FakeTensorMode(), emulate_cuda(precision), ledger.tracking():
        result = run()
        del result
        out = run()
        live = ledger.live_bytes
        del out
    return live


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(shape, dtype=dtype, requires_grad=True)


def test_dropout_keeps_a_byte_per_element() -> None:
    numel = 1000
    assert kept_bytes(lambda: F.dropout(leaf(numel), 0.1)) == 4 * numel + 4 * numel + numel


@pytest.mark.parametrize(
    ("like_cuda", "fused", "counter_bytes"), [(True, False, 0), (True, True, 512), (False, False, 4)]
)
def test_fused_adam_keeps_step_counters_on_the_gpu(like_cuda: bool, fused: bool, counter_bytes: int) -> None:
    """Else torch keeps them on the host. What is held is rounded up to 512 bytes."""
    toml = f"""model = {{ use = "mlp", args = {{ hidden = [32] }} }}
    data.use = "digits"
    train.optimizer = {{ use = "adamw", fused = {str(fused).lower()} }}
    """
    request = PassRequest(from_text(toml, folder=Path.cwd()), 1, like_cuda=like_cuda)
    optimizer_bytes = fake_pass(request).devices[0].live_by_kind["optimizer"]
    sizes = [4 * numel for numel in (64 * 32, 32, 32 * 10, 10)]
    rounded = sum(-(-size // 512) * 512 for size in sizes)
    assert optimizer_bytes == 2 * (rounded if like_cuda else sum(sizes)) + counter_bytes * len(sizes)


def test_fused_attention_keeps_no_score_matrix() -> None:
    batch, heads, length, width = 2, 4, 512, 64
    matrix = batch * heads * length * length * 4

    def attend() -> Tensor:
        qkv = [leaf(batch, heads, length, width) for _ in range(3)]
        return F.scaled_dot_product_attention(*qkv, is_causal=True)

    assert kept_bytes(attend) < 4.2 * batch * heads * length * width * 4 < matrix


def test_unfused_attention_keeps_its_scores() -> None:
    """Grouped queries in fp32, rows that are no whole 16 bytes, no heads at all."""
    batch, heads, length = 2, 4, 256
    matrix = batch * heads * length * length * 4

    def attend(groups: int, width: int) -> Tensor:
        query = leaf(batch, heads, length, width)
        others = [leaf(batch, heads // groups, length, width) for _ in range(2)]
        return F.scaled_dot_product_attention(query, *others, enable_gqa=groups > 1)

    assert kept_bytes(lambda: attend(2, 64)) > matrix
    assert kept_bytes(lambda: attend(1, 63)) > matrix
    flat = kept_bytes(lambda: F.scaled_dot_product_attention(*(leaf(batch, length, 64) for _ in range(3))))
    assert flat > matrix / heads


def test_attention_kernels_are_chosen_as_on_a_gpu() -> None:
    half = torch.zeros(1, 1, 8, 64, dtype=torch.bfloat16)
    assert attention_kernel(half, None) == "flash"
    assert attention_kernel(half, torch.zeros(8, 8)) == "efficient"
    assert attention_kernel(half.float(), None) == "efficient"
    assert attention_kernel(half.double(), None) == "math"
    assert attention_kernel(torch.zeros(1, 1, 8, 63), None) == "math"


def test_norms_compute_in_fp32_under_autocast() -> None:
    def norm() -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return F.layer_norm(leaf(4, 8, dtype=torch.bfloat16), (8,))

    with FakeTensorMode(), emulate_cuda("bf16"):
        assert norm().dtype == torch.float32
    with FakeTensorMode():
        assert norm().dtype == torch.bfloat16
