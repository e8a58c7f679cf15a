"""Errors of torch that people meet most: each is raised by torch itself where a CPU can, and gets a fix."""

from __future__ import annotations

import copy
import functools
import io
import multiprocessing
import os
import pickle
import re
import socket
import traceback
import warnings
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as Parallel
from torch.utils.data import DataLoader, Dataset, SequentialSampler

from rankdeck.diagnose.exceptions import describe_exception, match_rule
from rankdeck.diagnose.failure_rules import FAILURE_RULES, FailureRule
from rankdeck.diagnose.tracebacks import find_exception
from tests.engine.diagnose.test_failures import ERROR_TEXTS, RAISED_ERRORS, Raiser, raised_by


class MappedDataset(Dataset[Any]):
    """A function's results."""

    def __init__(self, function: Callable[[int], Any], length: int = 4) -> None:
        self.function, self.length = function, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.function(index)


def _load(function: Callable[[int], Any], **options: Any) -> list[Any]:
    return list(DataLoader(MappedDataset(function), batch_size=2, **options))


def _weight() -> torch.Tensor:
    return torch.ones(1, requires_grad=True)


def _sgd() -> torch.optim.Optimizer:
    return torch.optim.SGD([_weight()], 0.1)


def _step_past_the_schedule() -> None:
    schedule = torch.optim.lr_scheduler.OneCycleLR(_sgd(), 0.1, total_steps=2)
    for _ in range(4):
        schedule.step()


def _spawn_local_function() -> None:
    def seed_worker(worker: int) -> None: ...

    iter(DataLoader([1, 2], num_workers=1, worker_init_fn=seed_worker, multiprocessing_context="spawn"))


def _scale(model: nn.Module, *calls: str) -> None:
    scaler, optimizer = torch.amp.GradScaler("cpu"), torch.optim.SGD(model.parameters(), 0.1)
    scaler.scale(model(torch.ones(1, 2, dtype=next(model.parameters()).dtype)).sum()).backward()
    for call in calls:
        getattr(scaler, call)(optimizer)


class Thing:
    """A type that torch.load does not allow by default."""


def _load_saved(value: object) -> None:
    file = io.BytesIO()
    torch.save(value, file)
    torch.load(io.BytesIO(file.getvalue()), weights_only=True)


def _backward_to_nan() -> None:
    with torch.autograd.set_detect_anomaly(True):
        x = torch.zeros(1, requires_grad=True)
        (torch.sqrt(x) * 0).sum().backward()


def _train_on_inference_tensor() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
    (x * torch.ones(2, requires_grad=True)).sum()


def _change_inference_tensor() -> None:
    with torch.inference_mode():
        x = torch.ones(2)
    x.add_(1)


def _change_view() -> None:
    views = torch.ones(2, 2, requires_grad=True).unbind()
    views[0].add_(1)


def _grad_of_unused() -> None:
    torch.autograd.grad((_weight() * 2).sum(), _weight())


def _set_start_method_twice() -> None:
    # Not the default context itself: other tests in this process would start their processes differently.
    context = multiprocessing.context.DefaultContext(multiprocessing.get_context("fork"))
    context.set_start_method("fork")
    context.set_start_method("spawn")


def _start_process_group_twice() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


class Branches(nn.Module):
    """Two layers; whether the second is used depends on the number of calls."""

    def __init__(self, is_used: Callable[[int], bool]) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2), nn.Linear(2, 2)
        self.is_used, self.num_calls = is_used, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_calls += 1
        return self.second(self.first(x)) if self.is_used(self.num_calls) else self.first(x)


def _train(model: nn.Module, num_steps: int) -> None:
    for _ in range(num_steps):
        model(torch.ones(1, 2)).sum().backward()


def _forward_on_meta() -> None:
    with torch.device("meta"):
        model = nn.Linear(2, 2)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))(torch.ones(1, 2))


def _load_into_shards() -> None:
    model = nn.Linear(2, 2)
    fully_shard(model, mesh=dist.init_device_mesh("cpu", (1,)))
    model.load_state_dict(nn.Linear(2, 2).state_dict())


def _shard_flat(model: nn.Module, *, use_orig_params: bool) -> None:
    FullyShardedDataParallel(model, use_orig_params=use_orig_params, device_id=torch.device("cpu"))


def _load_checkpoint(folder: Path, name: str, size: int) -> None:
    dcp.save({"weight": torch.ones(1)}, checkpoint_id=folder)
    dcp.load({name: torch.ones(size)}, checkpoint_id=folder)


def _unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _wait_for_ranks() -> None:
    dist.TCPStore("127.0.0.1", _unused_port(), 2, is_master=True, timeout=timedelta(seconds=1))


def _wait_for_key() -> None:
    store = dist.TCPStore("127.0.0.1", _unused_port(), 1, is_master=True, timeout=timedelta(seconds=1))
    store.get("default_pg/0//worker_count")


def _use_absent_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "bond9")
    dist.new_group(backend="gloo")


def _die(index: int) -> None:
    os._exit(3)


TWO_LAYERS = functools.partial(nn.Sequential, nn.Linear(2, 2))

RAISED: list[tuple[str, str, Raiser]] = [
    ("schedule-too-short", "created for 2 steps", _step_past_the_schedule),
    ("ragged-samples", "collate_fn", lambda: _load(lambda i: torch.zeros(2 + i), num_workers=1)),
    ("ragged-samples", "shape", lambda: _load(lambda i: [1] * (i + 1))),
    ("sample-is-none", "__getitem__", lambda: _load(lambda i: None)),
    ("sample-type", "a object", lambda: _load(lambda i: object())),
    ("empty-dataset", "len(dataset)", lambda: DataLoader(MappedDataset(len, 0), shuffle=True)),
    ("sampler-and-shuffle", "shuffle=True",
     lambda: DataLoader([1], shuffle=True, sampler=SequentialSampler([1]))),
    ("loader-without-workers", "num_workers", lambda: DataLoader([1], persistent_workers=True)),
    ("loader-without-workers", "num_workers", lambda: DataLoader([1], prefetch_factor=2)),
    ("not-picklable", "Move seed_worker to the top", _spawn_local_function),
    ("not-picklable", "lambda", lambda: pickle.dumps(_LAMBDA)),
    ("not-picklable", "worker_init_fn", lambda: pickle.dumps(i for i in range(3))),
    ("spawned-process-died", "exit code 3",
     lambda: torch.multiprocessing.start_processes(_die, nprocs=1, start_method="fork")),
    ("deepcopy-of-graph", ".detach()", lambda: copy.deepcopy(_weight() * 2)),
    ("scaler-order", "scaler.update", lambda: _scale(nn.Linear(2, 1), "step", "step")),
    ("scaler-order", "scaler.unscale_", lambda: _scale(nn.Linear(2, 1), "unscale_", "unscale_")),
    ("scaler-order", "model.half()", lambda: _scale(nn.Linear(2, 1).half(), "unscale_")),
    ("no-parameters", "nn.ModuleList", lambda: torch.optim.SGD([], 0.1)),
    ("not-a-parameter", "nn.Parameter", lambda: torch.optim.SGD([_weight() * 2], 0.1)),
    ("not-a-parameter", "nn.Parameter", lambda: torch.optim.SGD(["x"], 0.1)),
    ("parameter-in-two-groups", "named_parameters",
     lambda: torch.optim.SGD([{"params": [p]} for p in [_weight()] * 2], 0.1)),
    ("schedule-not-resumed", "state_dict",
     lambda: torch.optim.lr_scheduler.StepLR(_sgd(), 1, last_epoch=3)),
    ("closure-missing", "function", lambda: torch.optim.LBFGS([_weight()]).step()),
    ("checkpoint-mismatch", "weight has shape [4, 2] in the file, but [3, 2]",
     lambda: nn.Linear(2, 3).load_state_dict(nn.Linear(2, 4).state_dict())),
    ("checkpoint-mismatch", "model._orig_mod",
     lambda: nn.Linear(2, 3).load_state_dict({"_orig_mod.weight": torch.ones(3, 2)})),
    ("checkpoint-mismatch", "1.weight",
     lambda: nn.Sequential(*[nn.Linear(2, 2)] * 2).load_state_dict(TWO_LAYERS().state_dict())),
    ("checkpoint-mismatch", "same options",
     lambda: nn.Linear(2, 3).load_state_dict({**nn.Linear(2, 3).state_dict(), "more": torch.ones(1)})),
    ("weights-only", f"contains {__name__}.Thing", lambda: _load_saved({"a": Thing()})),
    ("weights-only", "weights_only=False", lambda: _load_saved({"a": np.float64(3)})),
    ("unreadable-weights", "git lfs pull",
     lambda: torch.load(io.BytesIO(b"version https://git-lfs.github.com/spec/v1\n"), weights_only=True)),
    ("no-cuda", "CPU build", lambda: torch.ones(1).cuda()),
    ("nan-in-backward", "The backward pass through SqrtBackward0", _backward_to_nan),
    ("nan-outputs", "logits", lambda: torch.distributions.Categorical(logits=torch.tensor([np.nan, 1.0]))),
    ("nan-outputs", "GreaterThan(lower_bound=0.0)",
     lambda: torch.distributions.Normal(torch.zeros(1), -torch.ones(1))),
    ("nan-outputs", "softmax", lambda: torch.multinomial(torch.tensor([np.nan, 1.0]), 1)),
    ("not-probabilities", "BCEWithLogitsLoss",
     lambda: F.binary_cross_entropy(torch.tensor([2.0]), torch.ones(1))),
    ("shape-mismatch", "outputs of shape [8, 1] and targets of shape [8]",
     lambda: F.binary_cross_entropy_with_logits(torch.ones(8, 1), torch.ones(8))),
    ("shape-mismatch", "outputs of shape [8, 1] and targets of shape [8]",
     lambda: F.binary_cross_entropy(torch.ones(8, 1), torch.ones(8))),
    ("shape-mismatch", "squeeze(1)", lambda: F.cross_entropy(torch.ones(8, 3), torch.zeros(8, 1).long())),
    ("shape-mismatch", "expects 64 features, but its input has 65",
     lambda: nn.Linear(64, 10)(torch.ones(3, 65))),
    ("shape-mismatch", "in_channels to 1", lambda: nn.Conv2d(3, 4, 3)(torch.ones(1, 1, 8, 8))),
    ("shape-mismatch", "3 outputs for 5 targets",
     lambda: F.cross_entropy(torch.ones(3, 4), torch.zeros(5).long())),
    ("target-dtype", "targets.long()", lambda: F.cross_entropy(torch.ones(8, 3), torch.zeros(8).int())),
    ("index-dtype", ".long()", lambda: nn.Embedding(4, 2)(torch.ones(1))),
    ("unsafe-autocast", "BCEWithLogitsLoss", lambda: _autocast_bce()),
    ("not-scalar", ".mean()", lambda: torch.ones(8).item()),
    ("not-scalar", ".mean()", lambda: float(torch.ones(8))),
    ("ambiguous-truth", "nn.MSELoss()(x, y)",
     lambda: nn.CrossEntropyLoss(torch.ones(8, 3), torch.zeros(8))),
    ("numpy-of-gpu-tensor", ".detach().cpu().numpy()", lambda: _weight().numpy()),
    ("view-needs-copy", ".reshape(...)", lambda: torch.ones(4, 4).t().view(-1)),
    ("negative-strides", ".copy()", lambda: torch.from_numpy(np.ones(3)[::-1])),
    ("input-too-small", "larger inputs", lambda: nn.Conv2d(1, 1, 5)(torch.ones(1, 1, 3, 3))),
    ("input-too-small", "larger inputs", lambda: F.max_pool2d(torch.ones(1, 1, 1, 1), 2)),
    ("input-too-small", "larger inputs", lambda: nn.InstanceNorm2d(4)(torch.ones(1, 4, 1, 1))),
    ("modified-in-place", ".clone()", _change_view),
    ("inference-tensor", "torch.no_grad()", _train_on_inference_tensor),
    ("inference-tensor", "torch.no_grad()", _change_inference_tensor),
    ("unused-input", "allow_unused=True", _grad_of_unused),
    ("start-method", "set_start_method once", _set_start_method_twice),
    ("meta-weights", "to_empty", lambda: nn.Linear(2, 2, device="meta").to("cpu")),
    ("process-group-twice", "is_initialized()", _start_process_group_twice),
    ("mesh-size", "has 2 ranks", lambda: dist.init_device_mesh("cpu", (2,))),
    ("device-ids", "model.to(local_rank)", lambda: Parallel(nn.Linear(2, 2), device_ids=[0])),
    ("frozen-model", "requires_grad_(True)", lambda: Parallel(nn.Linear(2, 2).requires_grad_(False))),
    ("lazy-model", "sample batch", lambda: Parallel(nn.LazyLinear(2))),
    ("wrapper-attribute", "model.module.in_features", lambda: Parallel(nn.Linear(2, 2)).in_features),
    ("model-on-two-devices", "whole model", lambda: Parallel(TWO_LAYERS(nn.Linear(2, 2, device="meta")))),
    ("sync-batchnorm-on-cpu", "GPUs", lambda: _train(Parallel(TWO_LAYERS(nn.SyncBatchNorm(2))), 1)),
    ("graph-changed", "find_unused_parameters=True",
     lambda: _train(Parallel(Branches(lambda n: n > 1), static_graph=True), 4)),
    ("unused-parameters",
     "find_unused_parameters=True", lambda: _train(Parallel(Branches(lambda n: False)), 2)),
    ("mixed-requires-grad", "use_orig_params=True",
     lambda: _shard_flat(TWO_LAYERS(nn.Linear(2, 2).requires_grad_(False)), use_orig_params=False)),
    ("mixed-dtypes", "torch.float32 and torch.float16",
     lambda: _shard_flat(TWO_LAYERS(nn.Linear(2, 2).half()), use_orig_params=True)),
    ("meta-weights", "to_empty", _forward_on_meta),
    ("weight-in-slices", "set_model_state_dict", _load_into_shards),
    ("ranks-did-not-join", "Only 1 of 2", _wait_for_ranks),
    ("ranks-did-not-join", "worker_count", _wait_for_key),
]  # fmt: skip

_LAMBDA = lambda: None  # noqa: E731


def _autocast_bce() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        raise RuntimeError(
            "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast.\n"
        )


TEXTS = [
    ("ragged-samples", "RuntimeError", "Caught RuntimeError in DataLoader worker process 0.\nRuntimeError: "
     "Trying to resize storage that is not resizable", "collate_fn"),
    ("no-process-group", "ValueError", "Default process group has not been initialized",
     "init_process_group()"),
    ("graph-sent", "RuntimeError", "Cowardly refusing to serialize non-leaf tensor which requires_grad, "
     "since "
     "autograd does not support crossing process boundaries.", ".detach()"),
    ("graph-sent", "RuntimeError", "stack(): functions with out=... arguments don't support automatic "
     "differentiation, but one of the arguments requires grad.", ".detach()"),
    ("too-many-files", "RuntimeError", "received 0 items of ancdata", "set_sharing_strategy"),
    ("too-many-files", "RuntimeError", "unable to open shared memory object </torch_11_0> in read-write "
     "mode: "
     "Too many open files (24)", "set_sharing_strategy"),
    ("too-many-files", "OSError", "[Errno 24] Too many open files: 'x'", "ulimit -n"),
    ("sender-gone", "RuntimeError", "unable to open shared memory object </torch_11_0> in read-only mode: "
     "No such file or directory (2)", "join"),
    ("out-of-memory", "OSError", "[Errno 12] Cannot allocate memory", "batch size"),
    ("out-of-memory", "DistBackendError", "NCCL error: ncclUnhandledCudaError\nLast error:\nCuda failure 2 "
     "'out of memory'", "batch size"),
    ("unused-parameters", "RuntimeError", "Expected to have finished reduction in the prior iteration before "
     "starting.\nParameters which did not receive grad for rank 0: spare.bias\n", "spare.bias"),
    ("unused-parameters", "RuntimeError", "It looks like your LightningModule has parameters that were not "
     "used in producing the loss returned by training_step.", "ddp_find_unused_parameters_true"),
    ("ready-twice", "RuntimeError", "Expected to mark a variable ready only once. This error\nParameter at "
     "index 3 with name block.bias has been marked as ready twice.", "gradient of block.bias"),
    ("rank-missing", "RuntimeError", "DDP expects same model across all ranks, but Rank 0 has 6 params, "
     "while "
     "rank 1 has inconsistent 0 params.", "log of rank 1"),
    ("model-differs", "RuntimeError", "DDP expects same model across all ranks, but Rank 0 has 6 params, "
     "while "
     "rank 1 has inconsistent 4 params.", "rank 0 has 6 parameter tensors, but rank 1 has 4"),
    ("model-differs", "RuntimeError", "[1]: params[2] in this process with sizes [8, 4] appears not to match "
     "sizes of the same param in process 0.", "shape [8, 4] on rank 1"),
    ("fsdp-moved", "RuntimeError", "An FSDP-managed module unexpectedly has parameters on cpu. Make sure to "
     "move the module to cuda:0 before training.", "device_id="),
    ("optimizer-before-sharding", "RuntimeError", "The optimizer should be initialized after wrapping",
     "Create the optimizer after"),
    ("no-interface", "RuntimeError", "Bootstrap : no socket interface found", "NCCL_SOCKET_IFNAME"),
    ("ranks-did-not-join", "DistStoreError", "Timed out initializing process group in store based barrier on "
     "rank 0, for key: store_based_barrier_key:1 (world_size=4, num_workers_joined=3, timeout=0:30:00)",
     "3 of 4 ranks"),
    ("ranks-did-not-join", "", "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError",
     "--rdzv-id"),
    ("device-without-backend", "RuntimeError", "No backend type associated with device type cpu",
     "cpu:gloo,cuda:nccl"),
    ("device-without-backend", "ValueError", "Tensors must be CUDA and dense", "tensor.to(local_rank)"),
    ("reduce-op", "RuntimeError", "Cannot use ReduceOp.AVG with Gloo", "ReduceOp.SUM"),
    ("not-contiguous", "ValueError", "Tensors must be contiguous", ".contiguous()"),
    ("gpu-busy", "AcceleratorError", "CUDA error: CUDA-capable device(s) is/are busy or unavailable",
     "nvidia-smi"),
    ("gpu-library", "RuntimeError", "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling "
     "`cublasCreate(handle)`", "CUDA_LAUNCH_BLOCKING=1"),
    ("no-cuda", "RuntimeError", "Attempting to deserialize object on a CUDA device but "
     "torch.cuda.is_available() is False.", 'map_location="cpu"'),
    ("no-cuda", "RuntimeError", "No CUDA GPUs are available", "CUDA_VISIBLE_DEVICES"),
    ("devices-mixed", "RuntimeError", "Expected all tensors to be on the same device, but got mat1 is on "
     "cpu, "
     "different from other tensors on cuda:0 (when checking argument in method wrapper_CUDA_addmm)",
     "argument mat1 is on cpu, but the other tensors are on cuda:0"),
    ("devices-mixed", "RuntimeError", "Input type (torch.cuda.FloatTensor) and weight type "
     "(torch.FloatTensor) "
     "should be the same", "model.to(device)"),
    ("devices-mixed", "RuntimeError", "Input type (torch.FloatTensor) and weight type "
     "(torch.cuda.FloatTensor) "
     "should be the same", "x.to(device)"),
    ("devices-mixed", "RuntimeError", "indices should be either on cpu or on the same device as the indexed "
     "tensor (cpu)", "index.to(x.device)"),
    ("pinned-twice", "RuntimeError", "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be "
     "pinned",
     "pin_memory=False"),
    ("generator-device", "RuntimeError", "Expected a 'cuda' device type for generator but found 'cpu'",
     "torch.Generator"),
    ("overwritten-graph-output", "RuntimeError", "Error: accessing tensor output of CUDAGraphs that has been "
     "overwritten by a subsequent run.", "cudagraph_mark_step_begin"),
    ("rnn-in-eval", "RuntimeError", "cudnn RNN backward can only be called in training mode",
     "model.train()"),
    ("worker-starts-workers", "AssertionError", "daemonic processes are not allowed to have children",
     "num_workers=0"),
    ("not-picklable", "AttributeError", "Can't get local object 'main.<locals>.seed_worker'", "inside main"),
    ("not-picklable", "PicklingError", "Can't pickle local object "
     "<function main.<locals>.seed_worker at 0x7f>",
     "Move seed_worker"),
    ("not-picklable", "PicklingError", "Can't pickle <class 'train.Net'>: it's not the same "
     "object as train.Net",
     "module level"),
    ("compile-unsupported", "RuntimeError", "Dynamo is not supported on Python 3.14+", "newer torch"),
    ("compile-unsupported", "Unsupported", "Failed to trace builtin operator", "fullgraph=True"),
    ("nccl-system-error", "DistBackendError", "NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled system "
     "error\n"
     "ncclSystemError: System call (e.g. socket, malloc) or external library call failed", "NCCL_DEBUG=INFO"),
    ("nccl-cuda-error", "DistBackendError", "NCCL error in: ProcessGroupNCCL.cpp:1275, unhandled cuda error",
     "NCCL_DEBUG=INFO"),
    ("communication", "RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:3",
     "first error in the other ranks' logs"),
]  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def process_group() -> Iterator[None]:
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def _advice(rule_match: Any) -> str:
    return str(rule_match.advice(for_script=True))


@functools.cache
def _raise(raiser: Raiser) -> tuple[str, str, str]:
    """Return the error's type and text, and what Python prints of it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        error = raised_by(raiser)
    printed = "".join(traceback.format_exception(error))
    traceback.clear_frames(error.__traceback__)  # the workers of a loader end with it
    return type(error).__name__, str(error), printed


@pytest.mark.parametrize(
    ("code", "fix", "raiser"), RAISED, ids=[f"{n}-{item[0]}" for n, item in enumerate(RAISED)]
)
def test_an_error_that_torch_raises_gets_its_fix(code: str, fix: str, raiser: Raiser) -> None:
    kind, text, printed = _raise(raiser)
    named = match_rule(kind, text)
    assert named is not None and named.code == code, printed
    assert fix in _advice(named) and "{" not in _advice(named)
    # A script's error is read from what Python prints.
    raised = find_exception(printed)
    assert raised is not None
    of_log = match_rule(raised.name, raised.full_text)
    assert of_log is not None and of_log.rule is named.rule, printed


@pytest.mark.parametrize(
    ("code", "kind", "text", "fix"), TEXTS, ids=[f"{n}-{item[0]}" for n, item in enumerate(TEXTS)]
)
def test_an_error_text_gets_its_fix(code: str, kind: str, text: str, fix: str) -> None:
    named = match_rule(kind, text)
    assert named is not None and named.code == code
    assert fix in _advice(named) and "{" not in _advice(named)


@pytest.mark.parametrize(("name", "size", "fix"), [("other", 1, "no entry other"), ("weight", 2, "[1]")])
def test_a_distributed_checkpoint_that_does_not_fit(tmp_path: Path, name: str, size: int, fix: str) -> None:
    error = raised_by(lambda: _load_checkpoint(tmp_path, name, size))
    named = match_rule(type(error).__name__, str(error))
    assert named is not None and named.code == "checkpoint-mismatch" and fix in _advice(named)


def test_an_absent_interface_is_named_with_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    error = raised_by(lambda: _use_absent_interface(monkeypatch))
    problem = describe_exception(error, 0).problem
    assert problem.code == "no-interface" and problem.advice is not None
    assert problem.advice.startswith("GLOO_SOCKET_IFNAME is bond9, but")


def _examples() -> Iterator[tuple[str, str]]:
    """Yield the type and text of every error of these two files."""
    yield from ((kind, text) for _, kind, text in ERROR_TEXTS)
    yield from ((kind, text) for _, kind, text, _ in TEXTS)
    raisers = [raiser for code, raiser in RAISED_ERRORS if code != "no-process-group"]
    for raiser in [*raisers, *(raiser for _, _, raiser in RAISED)]:
        yield _raise(raiser)[:2]


# Words of a message that only repeats the error, or sends its reader elsewhere.
_NO_FIX = re.compile(r"^(See|The full traceback|Its full output|Check the log)\b")


@pytest.mark.parametrize("rule", FAILURE_RULES, ids=lambda rule: f"{FAILURE_RULES.index(rule)}-{rule.code}")
def test_each_rule_says_what_to_do_next(rule: FailureRule) -> None:
    for advice in filter(None, (rule.advice, rule.script_advice)):
        assert len(advice.split()) >= 4 and advice != rule.meaning and not _NO_FIX.match(advice)
        assert advice[-1] == "." or advice.split(": ")[-1].split()[0] in ("rankdeck", "git", "ip"), advice
    assert rule.advice
    groups = set(rule.pattern.groupindex)
    for text in (rule.advice, rule.script_advice):
        assert set(re.findall(r"\{(\w+)\}", text)) <= groups


@pytest.mark.parametrize("rule", FAILURE_RULES, ids=lambda rule: f"{FAILURE_RULES.index(rule)}-{rule.code}")
def test_a_script_gets_no_advice_on_a_configuration(rule: FailureRule) -> None:
    advice = rule.script_advice or rule.advice
    assert not re.search(r"\b(?:strategy|train|data|launch|rehearsal)\.\w+", advice), advice


def test_each_rule_matches_an_example() -> None:
    matched = {id(named.rule) for kind, text in _examples() if (named := match_rule(kind, text)) is not None}
    missed = [rule for rule in FAILURE_RULES if id(rule) not in matched]
    assert {rule.code for rule in missed} <= {"no-launcher", "checkpoint-mismatch", "no-interface"}, missed
    assert len(FAILURE_RULES) > 120
