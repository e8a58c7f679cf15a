"""What an error's own words mean: each rule beside its error, which is really raised where a CPU can."""

from __future__ import annotations

import ctypes
import errno
import io
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from rankdeck.diagnose.exceptions import describe_exception, match_rule
from rankdeck.diagnose.failure_rules import FAILURE_RULES
from rankdeck.diagnose.tracebacks import find_exception

Raiser = Callable[[], object]


class BrokenDataset(Dataset[torch.Tensor]):
    """What reading its second sample does is up to the test."""

    def __init__(self, act: Callable[[], torch.Tensor]) -> None:
        self.act = act

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.zeros(2) if index != 1 else self.act()


def _load_batches(act: Callable[[], torch.Tensor], **options: int) -> list[torch.Tensor]:
    return list(DataLoader(BrokenDataset(act), batch_size=2, **options))


def _raise_key_error() -> torch.Tensor:
    raise KeyError("nose")


def _exit() -> torch.Tensor:
    os._exit(3)


def _backward(loss: torch.Tensor) -> None:
    loss.backward()


def _changed_in_place() -> None:
    x = torch.ones(2, requires_grad=True)
    y = x.exp()
    y += 1
    y.sum().backward()


def _backward_twice() -> None:
    loss = (torch.ones(2, requires_grad=True) ** 2).sum()
    loss.backward()
    loss.backward()


def _step_without_backward() -> None:
    scaler = torch.amp.GradScaler("cpu")
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters())
    scaler.scale(model(torch.ones(1, 2)).sum())
    scaler.step(optimizer)


def _load(prefix: str, model: nn.Module) -> None:
    model.load_state_dict({f"{prefix}{key}": value for key, value in nn.Linear(2, 1).state_dict().items()})


def _wrong_optimizer() -> None:
    two = torch.optim.SGD([{"params": [torch.ones(1)]}, {"params": [torch.ones(1)]}])
    torch.optim.SGD([torch.ones(1)]).load_state_dict(two.state_dict())


def _bind_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        socket.create_server(server.getsockname())


def _store_on_taken_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        torch.distributed.TCPStore("127.0.0.1", server.getsockname()[1], 1, is_master=True)


def _connect_without_store() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    from datetime import timedelta

    torch.distributed.TCPStore("127.0.0.1", port, 2, is_master=False, timeout=timedelta(seconds=1))


def _init_without_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(variable, raising=False)
    torch.distributed.init_process_group("gloo")


def _load_truncated_file() -> None:
    file = io.BytesIO()
    torch.save(nn.Linear(2, 1).state_dict(), file)
    torch.load(io.BytesIO(file.getvalue()[:-200]), weights_only=True)


RAISED_ERRORS: list[tuple[str, Raiser]] = [
    ("out-of-memory", lambda: torch.empty(1 << 60)),
    ("out-of-memory", lambda: bytearray(1 << 60)),
    ("shape-mismatch", lambda: nn.Linear(64, 10)(torch.ones(3, 65))),
    ("shape-mismatch", lambda: torch.ones(3, 4) + torch.ones(3, 5)),
    ("shape-mismatch", lambda: torch.ones(6).view(4, 2)),
    ("shape-mismatch", lambda: nn.functional.cross_entropy(torch.ones(3, 4), torch.zeros(5).long())),
    ("shape-mismatch", lambda: nn.Conv2d(3, 4, 3)(torch.ones(1, 1, 8, 8))),
    ("shape-mismatch", lambda: torch.cat([torch.ones(2, 3), torch.ones(2, 4)])),
    ("shape-mismatch", lambda: nn.LayerNorm(8)(torch.ones(2, 7))),
    ("shape-mismatch", lambda: nn.LSTM(8, 4)(torch.ones(2, 7))),
    ("labels-out-of-range", lambda: nn.functional.cross_entropy(torch.ones(2, 4), torch.tensor([0, 4]))),
    ("index-out-of-range", lambda: nn.Embedding(4, 2)(torch.tensor([9]))),
    ("batch-of-one", lambda: nn.BatchNorm1d(4)(torch.ones(1, 4))),
    ("dtype-mismatch", lambda: nn.Linear(2, 1)(torch.ones(3, 2).double())),
    ("dtype-mismatch", lambda: nn.Conv2d(1, 1, 1)(torch.ones(1, 1, 2, 2).double())),
    ("dtype-mismatch", lambda: nn.functional.mse_loss(torch.ones(2).int(), torch.ones(2).bool()).backward()),
    ("modified-in-place", _changed_in_place),
    ("graph-freed", _backward_twice),
    ("no-graph", lambda: _backward(torch.ones(2).sum())),
    ("not-scalar", lambda: _backward(torch.ones(2, requires_grad=True) * 2)),
    ("leaf-changed", lambda: torch.ones(2, requires_grad=True).add_(1)),
    ("scaler-order", _step_without_backward),
    ("ragged-samples", lambda: _load_batches(lambda: torch.zeros(3))),
    ("data-worker", lambda: _load_batches(_raise_key_error, num_workers=1)),
    ("data-worker-died", lambda: _load_batches(_exit, num_workers=1)),
    ("not-picklable", lambda: pickle.dumps(lambda: None)),
    ("checkpoint-mismatch", lambda: _load("", nn.Linear(3, 1))),
    ("checkpoint-mismatch", lambda: _load("module.", nn.Linear(2, 1))),
    ("checkpoint-mismatch", _wrong_optimizer),
    ("unreadable-weights", _load_truncated_file),
    ("port-in-use", _bind_taken_port),
    ("port-in-use", _store_on_taken_port),
    ("unreachable", _connect_without_store),
    ("no-process-group", lambda: torch.distributed.all_reduce(torch.ones(1))),
    ("no-module", lambda: __import__("no_such_package")),
    ("no-file", lambda: Path("/no/such/file.csv").read_text()),
    ("broken-install", lambda: ctypes.CDLL("libno_such_library.so")),
    ("too-many-files", lambda: _os_error(errno.EMFILE)),
    ("too-many-processes", lambda: _os_error(errno.EAGAIN)),
    ("disk-full", lambda: _os_error(errno.ENOSPC)),
    ("disk-full", lambda: _os_error(errno.EDQUOT)),
    ("file-too-large", lambda: _os_error(errno.EFBIG)),
    ("disk-error", lambda: _os_error(errno.EROFS)),
    ("disk-error", lambda: _os_error(errno.EIO)),
    ("disk-error", lambda: _os_error(errno.ESTALE)),
    ("no-permission", lambda: _os_error(errno.EACCES)),
]


def _os_error(number: int) -> None:
    raise OSError(number, os.strerror(number), "/data/x")


def raised_by(raiser: Raiser) -> BaseException:
    with pytest.raises(BaseException) as caught:
        raiser()
    return caught.value


@pytest.mark.parametrize(
    ("code", "raiser"), RAISED_ERRORS, ids=[f"{n}-{code}" for n, (code, _) in enumerate(RAISED_ERRORS)]
)
def test_raised_errors_get_their_codes(code: str, raiser: Raiser) -> None:
    error = raised_by(raiser)
    problem = describe_exception(error, 1).problem
    traceback.clear_frames(error.__traceback__)  # the workers of a loader end with it
    assert problem.code == code and problem.advice and "{" not in problem.advice, problem


ERROR_TEXTS = [
    ("out-of-memory", "OutOfMemoryError", "CUDA out of memory. Tried to allocate 2.00 GiB."),
    ("out-of-memory", "RuntimeError", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED"),
    ("kernel-too-large", "OutOfResources", "out of resource: shared memory, Required: 147456"),
    ("shared-memory", "RuntimeError", "unable to write to file </torch_11_0>: No space left on device (28)"),
    ("gpu-shared", "DistBackendError", "NCCL error in: NCCLUtils.hpp:275, invalid usage\n"
     "ncclInvalidUsage: This usually reflects invalid usage of NCCL library.\nLast error:\n"
     "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 100000"),
    ("no-such-gpu", "AcceleratorError", "CUDA error: invalid device ordinal\nGPU device may be out of range"),
    ("device-assert", "AcceleratorError", "CUDA error: device-side assert triggered"),
    ("gpu-fault", "AcceleratorError", "CUDA error: an illegal memory access was encountered"),
    ("gpu-lost", "RuntimeError", "CUDA error: uncorrectable ECC error encountered"),
    ("no-kernel-image", "", "CUDA error: no kernel image is available for execution on the device"),
    ("driver-too-old", "RuntimeError", "The NVIDIA driver on your system is too old"),
    ("no-cuda", "RuntimeError", "Found no NVIDIA driver on your system."),
    ("no-cuda", "AssertionError", "Torch not compiled with CUDA enabled"),
    ("cuda-after-fork", "RuntimeError", "Cannot re-initialize CUDA in forked subprocess. To use CUDA with"),
    ("devices-mixed", "RuntimeError", "Expected all tensors to be on the same device, "
     "but found at least two devices, cuda:1 and cuda:0! (when checking"),
    ("no-interface", "RuntimeError", "[enforce fail at /third_party/gloo/gloo/transport/tcp/device.cc:84] "
     "ifa != nullptr. Unable to find address for: eth9"),
    ("no-host", "gaierror", "[Errno -2] Name or service not known"),
    ("ready-twice", "RuntimeError", "Expected to mark a variable ready only once."),
    ("collectives-differ", "RuntimeError", "Detected mismatch between collectives on ranks. Rank 0 is "
     "running collective: CollectiveFingerPrint(SequenceNumber=3, OpType=ALLREDUCE), but Rank 1 is running"),
    ("weight-in-slices", "RuntimeError", "aten.mm.default got mixed torch.Tensor and DTensor, need to "
     "convert all torch.Tensor to DTensor before calling distributed operators!"),
    ("unknown-rank-option", "", "train.py: error: unrecognized arguments: --local-rank=1"),
    ("world-size-mismatch", "ValueError", "You set `devices=2` and `num_nodes=1` in Lightning, but the "
     "product (2 * 1) does not match the world size (1)."),
    ("too-many-processes", "RuntimeError", "Resource temporarily unavailable"),
    ("one-process-only", "ValueError", "You can't train a model that has been loaded with "
     "`device_map='auto'` in any distributed mode. Please rerun your script specifying `--num_processes=1`"),
    ("one-rank-only", "ValueError", "Using fsdp only works in distributed training."),
    ("no-nccl", "RuntimeError", "Distributed package doesn't have NCCL built in"),
    ("no-nccl", "ValueError", "ProcessGroupNCCL is only supported with GPUs, no GPUs found!"),
    ("schedule-too-short", "ValueError", "Tried to step 91 times. The specified number of total steps is 90"),
    ("data-too-slow", "RuntimeError", "DataLoader timed out after 30 seconds"),
    ("no-main-guard", "RuntimeError", "An attempt has been made to start a new process before the\n"
     "        current process has finished its bootstrapping phase."),
    ("compile-failed", "InductorError", "RuntimeError: No suitable C++ compiler found"),
    ("download-failed", "URLError", "<urlopen error timed out>"),
    ("communication", "DistNetworkError", "Connection reset by peer"),
    ("communication", "RuntimeError", "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [::1]:3"),
    ("no-launcher", "ValueError", "Error initializing torch.distributed using env:// rendezvous: "
     "environment variable RANK expected, but not set"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "kind", "text"), ERROR_TEXTS, ids=[f"{n}-{item[0]}" for n, item in enumerate(ERROR_TEXTS)]
)
def test_gpu_error_texts_get_their_codes(code: str, kind: str, text: str) -> None:
    named = match_rule(kind, text)
    assert named is not None and named.code == code
    assert named.rule.is_about_others == (code in ("communication", "unreachable"))


def test_a_script_without_a_launcher_gets_the_launch_command(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = describe_exception(raised_by(lambda: _init_without_rank(monkeypatch)), 0).problem
    assert (
        problem.code == "no-launcher" and problem.advice and "rankdeck run --nproc-per-node" in problem.advice
    )


@pytest.mark.parametrize("code", ["world-size-mismatch", "one-process-only", "no-process-group", "no-nccl"])
def test_rules_about_launcher_variables_suggest_plain(code: str) -> None:
    rule = next(rule for rule in FAILURE_RULES if rule.code == code)
    assert "rankdeck run --plain" in (rule.script_advice or rule.advice)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad batch 17"),
        KeyError("NCCL error"),
        ConnectionError("https://example.org timed out"),
        RuntimeError("the module of the target is out of bounds"),
        AssertionError(),
        NotImplementedError("x"),
    ],
)
def test_unknown_errors_keep_their_message(error: Exception) -> None:
    problem = describe_exception(error, 0).problem
    assert problem.code == "rank-exception" and type(error).__name__ in problem.message


def test_advice_contains_names_from_the_error() -> None:
    target = describe_exception(raised_by(RAISED_ERRORS[10][1]), 0).problem
    assert target.advice is not None and target.advice.startswith("A target is 4, but")
    missing = describe_exception(raised_by(lambda: __import__("no_such_package")), 0).problem
    assert (
        missing.advice == "The run's interpreter has no module no_such_package. "
        "Install the package that provides the module, or correct its name."
    )
    port = describe_exception(raised_by(_store_on_taken_port), 0)
    assert port.problem.advice is not None and "is already listening on port" in port.problem.advice
    assert not port.is_communication


def test_a_printed_error_ends_with_its_message() -> None:
    printed = (
        "Traceback (most recent call last):\n"
        '  File "/p/train.py", line 13, in <module>\n'
        "    m(x).sum().backward()\n"
        "RuntimeError: Expected to have finished reduction in the prior iteration before starting.\n"
        "making sure all `forward` function outputs participate in calculating loss. \n"
        "Parameters which did not receive grad for rank 0: spare.bias, spare.weight\n"
        "Parameter indices which did not receive grad for rank 0: 2 3\n"
        "\n"
        "[W123 socket.cpp] address already in use\n"
    )
    raised = find_exception(printed)
    assert raised is not None
    named = match_rule(raised.name, raised.full_text)
    assert named is not None and named.groups == {"names": "spare.bias, spare.weight"}
    advice = named.advice(for_script=True)
    assert advice is not None and advice.startswith(
        "These parameters did not contribute to the loss: spare.bias, spare.weight. Pass"
    )
    of_run = named.advice(for_script=False)
    assert of_run is not None and "strategy.find_unused_parameters" in of_run


def test_log_lines_after_an_error_do_not_change_its_code(tmp_path: Path) -> None:
    raised = find_exception(
        "Traceback (most recent call last):\nValueError: bad\n\nport: 1 address already in use\n"
    )
    assert raised is not None and match_rule(raised.name, raised.full_text) is None
