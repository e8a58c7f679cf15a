"""Table of rules that match errors; the first match names the cause.

The patterns quote messages of Python, torch, gloo, NCCL and CUDA. Each has only the words that distinguish
one cause from another, so that it also matches messages of later versions. Read exceptions.py next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rankdeck.base.phrases import tr_noop

DISK = "disk-error"
COMMUNICATION = "communication"
"""The code of an error that only reports that other ranks are gone or did not arrive."""


@dataclass(frozen=True)
class FailureRule:
    """A rule that matches errors by exception type and text.

    `types`: exception names; empty matches any. `expression` is searched for in the text, and its named
    groups fill the placeholders of `meaning`. `advice` addresses the author of a configuration,
    `script_advice` the author of a script if the advice differs. `is_about_others`: the error reports the end
    or absence of another rank, not a fault of the rank that raised it.
    """

    code: str
    expression: str = ""
    types: tuple[str, ...] = ()
    meaning: str = ""
    advice: str = ""
    script_advice: str = ""
    is_about_others: bool = False
    pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", re.compile(self.expression, re.DOTALL))

    def match(self, kind: str, text: str) -> re.Match[str] | None:
        if self.types and kind not in self.types:
            return None
        return self.pattern.search(text)


_LAUNCH_BLOCKING_ADVICE = tr_noop(
    "Run again with CUDA_LAUNCH_BLOCKING=1 in the environment to see the failing line, or "
    "rehearse the run on the CPU."
)
_DOCTOR_ADVICE = tr_noop("Check the machine with: rankdeck doctor")
_LOCAL_RANK_ADVICE = tr_noop(
    "In a run, GPU indices start at 0: read the index from LOCAL_RANK, and call "
    "torch.cuda.set_device with it first."
)

FAILURE_RULES: tuple[FailureRule, ...] = (
    # Memory, disk space and other resources
    FailureRule(
        "out-of-memory",
        types=("MemoryError", "OutOfMemoryError"),
        advice=tr_noop(
            "Lower train.global_batch, raise train.accumulate, or set train.activation_checkpointing = true."
        ),
        script_advice=tr_noop("Lower the batch size or the size of the model, or use more devices."),
    ),
    FailureRule(
        "out-of-memory",
        r"can't allocate memory|CUDA out of memory|\b(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED",
        advice=tr_noop(
            "Lower train.global_batch, raise train.accumulate, or set train.activation_checkpointing = true."
        ),
        script_advice=tr_noop("Lower the batch size or the size of the model, or use more devices."),
    ),
    FailureRule(
        "kernel-too-large",
        types=("OutOfResources",),
        meaning=tr_noop(
            "A compiled kernel needs more shared memory or registers than the GPU allows per block."
        ),
        advice=tr_noop("Set train.compile = false, or use a smaller model."),
        script_advice=tr_noop("Do not compile that code, or make the kernel's blocks smaller."),
    ),
    FailureRule(
        "shared-memory",
        r"(?i)shared memory|bus error|/dev/shm/|unable to write to file </?torch_",
        advice=tr_noop("Set data.workers = 0, or make /dev/shm larger."),
        script_advice=tr_noop("Set num_workers=0 in the DataLoader, or make /dev/shm larger."),
    ),
    FailureRule(
        "disk-full",
        r"No space left on device",
        advice=tr_noop("Free some disk space, then start the run again."),
    ),
    FailureRule(
        "disk-full",
        r"Disk quota exceeded",
        meaning=tr_noop("The user's disk quota is exceeded."),
        advice=tr_noop("Remove some files (quota -s shows the usage), or choose another folder with --runs."),
    ),
    FailureRule(
        "file-too-large",
        r"File too large",
        meaning=tr_noop("The file exceeds the size limit of the process or the file system."),
        advice=tr_noop("Raise the limit (ulimit -f), or choose a folder on another file system with --runs."),
    ),
    FailureRule(
        DISK,
        r"Input/output error|Read-only file system|Stale file handle|Structure needs cleaning"
        r"|Transport endpoint is not connected",
        meaning=tr_noop("The disk or the connection to it failed."),
        advice=tr_noop("Check the kernel log (dmesg), or choose another folder with --runs."),
    ),
    FailureRule(
        "too-many-processes",
        r"can't start new thread|(\[Errno 11\] |^)Resource temporarily unavailable|pthread_create failed",
        meaning=tr_noop("The limit on processes and threads has been reached."),
        advice=tr_noop("Raise the limit (ulimit -u, or pids.max of the container), or use fewer ranks."),
    ),
    FailureRule(
        "too-many-files",
        r"Too many open files",
        meaning=tr_noop("The process has reached its limit on open files and connections."),
        advice=tr_noop("Raise the limit (ulimit -n), or use fewer workers (data.workers)."),
        script_advice=tr_noop(
            "Raise the limit (ulimit -n), or call torch.multiprocessing.set_sharing_strategy('file_system')."
        ),
    ),
    # Gradient synchronisation and collectives
    FailureRule(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration"
        r"(?:.*?Parameters which did not receive grad for rank \d+: (?P<names>[^\n]+))?",
        meaning=tr_noop("These parameters did not contribute to the loss: {names}."),
        advice=tr_noop(
            "Set strategy.find_unused_parameters = true, or remove the unused parameters from the model."
        ),
        script_advice=tr_noop(
            "Pass find_unused_parameters=True to DistributedDataParallel, or remove the unused "
            "parameters from the model."
        ),
    ),
    FailureRule(
        "ready-twice",
        r"Expected to mark a variable ready only once",
        meaning=tr_noop("A parameter was used in two forward or backward passes of one step."),
        advice=tr_noop("Set strategy.static_graph = true, or use each parameter once per step."),
        script_advice=tr_noop(
            "Pass static_graph=True to DistributedDataParallel, or use_reentrant=False to checkpoint()."
        ),
    ),
    FailureRule(
        "collectives-differ",
        r"Detected mismatch between collectives on ranks|Received data size doesn't match expected size",
        meaning=tr_noop("Ranks called different collectives, or the same collective with different shapes."),
        advice=tr_noop("Have every rank call the same collectives, in the same order, with the same shapes."),
    ),
    FailureRule(
        "weight-in-slices",
        r"got mixed torch.Tensor and DTensor",
        meaning=tr_noop("Code outside the layer reads a sharded weight directly."),
        advice=tr_noop("Call the layer instead of reading its weight, or set strategy.use = ddp."),
        script_advice=tr_noop(
            "Call the module instead of reading its weight, or gather it first (DTensor.full_tensor)."
        ),
    ),
    # Ports, interfaces, firewalls
    FailureRule(
        "port-in-use",
        r"(?i)(?:port: (?P<port>\d+).*?)?(?:EADDRINUSE|address already in use)",
        meaning=tr_noop("Another process is already listening on port {port}."),
        advice=tr_noop(
            "Use MASTER_PORT from the environment instead of a fixed port, or end the process "
            "that listens on the port (ss -ltnp shows it)."
        ),
    ),
    FailureRule(
        "no-interface",
        r"Unable to find address for: *(?P<interface>[^\s\]]+)|(?:no|No) socket interface found",
        meaning=tr_noop("There is no network interface {interface} with an address."),
        advice=tr_noop(
            "Set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to an interface that `ip -br "
            "address` shows, or unset them."
        ),
    ),
    FailureRule(
        "no-host",
        r"Name or service not known|Temporary failure in name resolution|nodename nor servname",
        meaning=tr_noop("A host name cannot be resolved."),
        advice=tr_noop(
            "Check the name and the network. If your code downloads data, download it once before "
            "the ranks start."
        ),
    ),
    FailureRule(
        "unreachable",
        r"client socket has (?:failed|timed out)[^\n]*?[\[(](?P<host>[^\]),]+)(?:\]:|, )(?P<port>\d+)"
        r"|No route to host",
        meaning=tr_noop("{host} does not answer on port {port}."),
        advice=tr_noop(
            "Rank 0 must run on that host, and firewalls must allow the port; see MASTER_ADDR "
            "and MASTER_PORT."
        ),
        is_about_others=True,
    ),
    # Process groups
    FailureRule(
        "no-process-group",
        r"Default process group has not been initialized",
        advice=tr_noop("Call torch.distributed.init_process_group() first, on every rank."),
        script_advice=tr_noop(
            "Call torch.distributed.init_process_group() first, on every rank. If a library "
            "needs it only because torchrun's variables are set, start one process without "
            "them: rankdeck run --plain."
        ),
    ),
    FailureRule(
        "no-nccl",
        r"doesn't have NCCL built in|ProcessGroupNCCL is only supported with GPUs",
        meaning=tr_noop("NCCL needs NVIDIA GPUs, and this process cannot use any."),
        advice=tr_noop('Use the backend "gloo".'),
        script_advice=tr_noop(
            'Use the backend "gloo", or start one process without torchrun\'s variables: '
            "rankdeck run --plain."
        ),
    ),
    FailureRule(
        "no-launcher",
        r"environment variable (?P<name>\w+) expected, but not set",
        meaning=tr_noop("The script cannot determine its rank: {name} is not set."),
        advice=tr_noop("Start it with: rankdeck run --nproc-per-node N SCRIPT (without --plain)"),
    ),
    FailureRule(
        "unknown-rank-option",
        r"unrecognized arguments: [^\n]*--local[-_]rank",
        advice=tr_noop("Read the rank from os.environ['LOCAL_RANK'] instead of --local-rank."),
    ),
    FailureRule(
        "one-process-only",
        r"in any distributed mode",
        meaning=tr_noop("Hugging Face Accelerate assumed that torchrun started this process."),
        advice=tr_noop("Start it as one process without torchrun's variables: rankdeck run --plain."),
    ),
    FailureRule(
        "one-rank-only",
        r"Using fsdp only works in distributed training",
        meaning=tr_noop("The Hugging Face Trainer has only one rank, but is configured to shard the model."),
        advice=tr_noop("Start one rank per GPU: rankdeck run --nproc-per-node N SCRIPT"),
    ),
    FailureRule(
        "world-size-mismatch",
        r"You set `devices=\d+` and `num_nodes=\d+` in Lightning, but the product",
        meaning=tr_noop(
            "Lightning is configured to start its own ranks, but assumes that torchrun started this process."
        ),
        advice=tr_noop(
            "Let Rankdeck start the ranks with --nproc-per-node, or start the script without "
            "torchrun's variables: rankdeck run --plain."
        ),
    ),
    # GPUs
    FailureRule(
        "gpu-shared",
        r"Duplicate GPU detected",
        meaning=tr_noop("Two ranks use the same GPU."),
        advice=_LOCAL_RANK_ADVICE,
    ),
    FailureRule(
        "no-such-gpu",
        r"invalid device ordinal",
        meaning=tr_noop("The rank selected a GPU that is not visible to it."),
        advice=_LOCAL_RANK_ADVICE,
    ),
    FailureRule(
        "device-assert",
        r"device-side assert triggered",
        meaning=tr_noop(
            "An index was out of range on the GPU, usually a target that is not a valid class "
            "or a token outside the vocabulary."
        ),
        advice=_LAUNCH_BLOCKING_ADVICE,
    ),
    FailureRule(
        "gpu-fault",
        r"illegal memory access|misaligned address|illegal instruction was encountered"
        r"|unspecified launch failure",
        meaning=tr_noop("A GPU kernel failed."),
        advice=_LAUNCH_BLOCKING_ADVICE,
    ),
    FailureRule(
        "gpu-lost",
        r"fallen off the bus|GPU is lost|uncorrectable ECC error",
        meaning=tr_noop("The GPU hardware failed."),
        advice=tr_noop("Check `dmesg` for Xid messages; the GPU may need a reset, or the machine a reboot."),
    ),
    FailureRule(
        "no-kernel-image",
        r"no kernel image is available for execution on the device",
        meaning=tr_noop("The installed torch was not built for this GPU."),
        advice=tr_noop(
            "Install a build of torch whose CUDA version supports this GPU. Check it with: rankdeck doctor"
        ),
    ),
    FailureRule(
        "driver-too-old",
        r"driver (?:version is insufficient|on your system is too old)",
        meaning=tr_noop("The driver is too old for the installed torch."),
        advice=tr_noop("Update the driver, or install a torch built for an older CUDA."),
    ),
    FailureRule(
        "no-cuda",
        r"Found no NVIDIA driver|No CUDA GPUs are available|Torch not compiled with CUDA enabled",
        meaning=tr_noop("No GPU is visible to this Python process."),
        advice=_DOCTOR_ADVICE,
    ),
    FailureRule(
        "cuda-after-fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        meaning=tr_noop("A process that already used a GPU was forked, so its child cannot use CUDA."),
        advice=tr_noop("Keep the data set's tensors on the CPU, or use the spawn start method."),
    ),
    FailureRule(
        "devices-mixed",
        r"Expected all tensors to be on the same device"
        r"(?:.*?at least two devices, (?P<one>[\w:]+)(?: and |, )(?P<other>[\w:]+\w))?",
        meaning=tr_noop("An operation got tensors on {one} and {other}."),
        advice=tr_noop(
            "Create tensors on the inputs' device (device=x.device), and register constants as "
            "buffers of the model."
        ),
    ),
    # Shapes, dtypes, ranges
    FailureRule(
        "labels-out-of-range",
        r"Target (?P<target>-?\d+) is out of bounds",
        meaning=tr_noop("A target is {target}, but the model's output has no such class."),
        advice=tr_noop("Give the model one output per class; class indices start at 0."),
    ),
    FailureRule(
        "index-out-of-range",
        r"index out of range in self",
        meaning=tr_noop("An index, usually a token ID, is out of range for an embedding."),
        advice=tr_noop("Set the vocabulary size to at least the largest token ID plus one."),
    ),
    FailureRule(
        "batch-of-one",
        r"Expected more than 1 value per channel when training",
        meaning=tr_noop("A batch norm got a single sample, which has no variance."),
        advice=tr_noop(
            "Use a batch that gives every device at least two samples, or set sync_batchnorm = true."
        ),
        script_advice=tr_noop("Pass drop_last=True to the DataLoader, or use a larger batch."),
    ),
    FailureRule(
        "dtype-mismatch",
        r"expected scalar type \w+ but found \w+|same dtype, but got|must have the same dtype"
        r"|Found dtype \w+ but expected \w+"
        r"|Input type \(.*?\) and (?:weight|bias) type \(.*?\) should be the same"
        r"|\"[\w<>, ]+\" not implemented for '\w+'|can't be cast to the desired output type",
        meaning=tr_noop(
            "An operation got tensors of different dtypes, or of a dtype that it does not support."
        ),
        advice=tr_noop(
            "Return samples in the model's dtype from the data set, or cast them in the model's forward."
        ),
    ),
    FailureRule(
        "shape-mismatch",
        r"shapes cannot be multiplied|must match the size of tensor|(?:is|are) invalid for input of size"
        r"|input batch_size \(\d+\) to match target batch_size|expected input\[.*?\] to have \d+ channels"
        r"|Sizes of tensors must match|input\.size\(-1\) must be equal to input_size|normalized_shape="
        r"|(?:size|shape) mismatch, (?:got|m1)|weight of size \[.*?\], expected input|must be broadcastable",
        meaning=tr_noop("Tensor shapes do not match."),
        advice=tr_noop(
            "Find the last line of your own code in the traceback, and print the tensor shapes "
            "just before that line runs."
        ),
    ),
    # Autograd
    FailureRule(
        "modified-in-place",
        r"modified by an inplace operation",
        meaning=tr_noop("A tensor that backward needs was modified after forward used it."),
        advice=tr_noop(
            "Write x = x + y instead of x += y; torch.autograd.set_detect_anomaly(True) shows where."
        ),
    ),
    FailureRule(
        "graph-freed",
        r"backward through the graph a second time",
        meaning=tr_noop(
            "backward ran twice for one forward, or a tensor kept between steps still has an "
            "earlier step's graph."
        ),
        advice=tr_noop(
            "Detach tensors that are kept between steps (state.detach()), and call backward once."
        ),
    ),
    FailureRule(
        "no-graph",
        r"does not require grad and does not have a grad_fn",
        meaning=tr_noop("The loss does not depend on any trainable parameter."),
        advice=tr_noop(
            "Look for frozen parameters, and for detach(), .item() or no_grad() between the "
            "model and the loss."
        ),
    ),
    FailureRule(
        "leaf-changed",
        r"a (?:view of a )?leaf Variable that requires grad",
        meaning=tr_noop("A parameter was modified in place while autograd was recording."),
        advice=tr_noop("Modify it under torch.no_grad()."),
    ),
    FailureRule(
        "not-scalar",
        r"grad can be implicitly created only for scalar outputs",
        meaning=tr_noop("The loss is not a scalar."),
        advice=tr_noop("Return its sum or mean."),
    ),
    FailureRule(
        "scaler-order",
        r"No inf checks were recorded|unscale_\(\) has already been called"
        r"|Attempting to unscale FP16 gradients",
        meaning=tr_noop("The gradient scaler was called out of order, or used with fp16 parameters."),
        advice=tr_noop(
            "Call scale(loss).backward(), then unscale_ (at most once), step and update, and "
            "keep parameters in fp32."
        ),
    ),
    FailureRule(
        "schedule-too-short",
        r"Tried to step (?P<steps>\d+) times\. The specified number of total steps is (?P<total>\d+)",
        meaning=tr_noop("The learning-rate schedule has {total} steps, but the training has more."),
        advice=tr_noop(
            "Make the schedule as long as the training: total_steps=epochs * len(loader), or epochs=epochs "
            "and steps_per_epoch=len(loader). len(loader) counts the last, smaller batch too."
        ),
    ),
    # Data
    FailureRule(
        "ragged-samples",
        r"stack expects each tensor to be equal size(?:, but got (?P<first>\[[^\]]*\]) at entry 0 and "
        r"(?P<other>\[[^\]]*\]) at entry (?P<entry>\d+))?"
        r"|each element in list of batch should be of equal size",
        meaning=tr_noop("Samples of a batch differ in shape: {first} and {other}."),
        advice=tr_noop(
            "Pad or crop them to the same shape in the data set, or add a read_batch(indices) "
            "that returns a whole batch, as a collate_fn does."
        ),
        script_advice=tr_noop("Pad or crop them to the same shape in the data set, or pass a collate_fn."),
    ),
    FailureRule(
        "data-worker-died",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) (?:exited unexpectedly|is killed by signal)",
        meaning=tr_noop("A data-loading worker of the rank died (pid {pids})."),
        advice=tr_noop(
            "Memory may have run out: use fewer workers. With data.workers = 0, the rank loads "
            "data in its own process and reports the error."
        ),
        script_advice=tr_noop(
            "Memory may have run out: use fewer workers. With num_workers=0, the rank loads "
            "data in its own process and reports the error."
        ),
    ),
    FailureRule(
        "data-too-slow",
        r"DataLoader timed out after (?P<seconds>\d+)",
        meaning=tr_noop("The DataLoader returned no batch for {seconds} s."),
        advice=tr_noop("Check how long reading a sample takes, or raise the DataLoader's timeout."),
    ),
    FailureRule(
        "data-worker",
        r"Caught (?P<error>\w+) in DataLoader worker process (?P<worker>\d+)",
        meaning=tr_noop("Reading a sample raised {error} in DataLoader worker {worker}."),
        advice=tr_noop(
            "Fix the error in the data set, then start again. The full traceback is in the rank's log."
        ),
    ),
    FailureRule(
        "not-picklable",
        r"Can't (?:pickle|get local object)|[Cc]annot pickle ",
        meaning=tr_noop("An object sent to another process cannot be pickled."),
        advice=tr_noop("Define it at module level, without lambdas, nested functions or open files."),
    ),
    FailureRule(
        "no-main-guard",
        r"before the\s+current process has finished its bootstrapping phase",
        meaning=tr_noop("The script starts processes when a child process imports it."),
        advice=tr_noop('Move the code that starts them below `if __name__ == "__main__":`.'),
    ),
    # Checkpoint files
    FailureRule(
        "checkpoint-mismatch",
        r"(?:Missing|Unexpected) key\(s\) in state_dict: [^\n]*\"module\.",
        types=("RuntimeError",),
        meaning=tr_noop(
            "Only the file's parameter names, or only the model's, start with \"module.\", the "
            "prefix that a parallel wrapper adds."
        ),
        advice=tr_noop("Save model.module.state_dict() instead, or adjust the prefix before loading."),
    ),
    FailureRule(
        "checkpoint-mismatch",
        r"Error\(s\) in loading state_dict for \w+"
        r"|loaded state dict (?:has a different|contains a parameter)",
        meaning=tr_noop("The file holds another model's weights or optimizer state."),
        advice=tr_noop("Build the model with the same options as when the file was saved."),
    ),
    FailureRule(
        "unreadable-weights",
        r"PytorchStreamReader failed|Weights only load failed|invalid load key|header too (?:large|small)"
        r"|Error while deserializing header",
        meaning=tr_noop("The file is truncated, damaged, or not a weights file."),
        advice=tr_noop("Use another copy of the file, or an older checkpoint."),
    ),
    # Packages and files
    FailureRule(
        "no-module",
        r"No module named '(?P<name>[^']+)'",
        types=("ModuleNotFoundError",),
        meaning=tr_noop("The run's interpreter has no module {name}."),
        advice=tr_noop("Install the package that provides it, or correct the name."),
    ),
    FailureRule(
        "broken-install",
        r"undefined symbol|cannot open shared object file|version `[^']+' not found|DLL load failed",
        meaning=tr_noop("A compiled package is not compatible with this Python, torch or system."),
        advice=tr_noop("Reinstall the package for this torch. Check the machine with: rankdeck doctor"),
    ),
    FailureRule(
        "compile-failed",
        r"backend='\w+' raised|No suitable C\+\+ compiler|InvalidCxxCompiler|C\+\+ compile error"
        r"|Inductor.*failed",
        meaning=tr_noop("torch.compile could not compile the model."),
        advice=tr_noop("Set train.compile = false, or install a C++ compiler (g++) if it is missing."),
        script_advice=tr_noop("Leave torch.compile out, or install a C++ compiler (g++) if it is missing."),
    ),
    FailureRule(
        "no-file",
        r"No such file or directory: '(?P<path>[^']+)'",
        types=("FileNotFoundError",),
        meaning=tr_noop("{path} does not exist."),
        advice=tr_noop("Relative paths are relative to the folder in which the run was started."),
    ),
    FailureRule(
        "no-permission",
        r"Permission denied: '(?P<path>[^']+)'",
        types=("PermissionError",),
        meaning=tr_noop("This user has no permission to read or write {path}."),
        advice=tr_noop("Change its owner or mode (ls -l shows both), or use another path."),
    ),
    FailureRule(
        "download-failed",
        r"",
        types=(
            "URLError",
            "HTTPError",
            "SSLError",
            "MaxRetryError",
            "ConnectTimeout",
            "ReadTimeout",
            "LocalEntryNotFoundError",
        ),
        meaning=tr_noop("A download failed."),
        advice=tr_noop("Download the data once before the ranks start, so that they read it from disk."),
    ),
    # Errors whose cause is on another rank; last, because more specific rules must win
    FailureRule(
        COMMUNICATION, types=("DistBackendError", "DistNetworkError", "DistStoreError"), is_about_others=True
    ),
    FailureRule(
        COMMUNICATION,
        r"(?i)gloo/|\bgloo\b[^\n]*(?:timeout|closed|failed)|Connection closed by peer"
        r"|Timed out (?:waiting|after)"
        r"|NCCL (?:error|operation|communicator)|nccl\w*Error|Watchdog caught collective|wait timeout"
        r"|ProcessGroup(?:NCCL|Gloo)|TCPStore|c10d|recvValue failed|sendBytes failed|monitored ?barrier"
        r"|Rank \d+ successfully reached",
        types=("RuntimeError", ""),
        is_about_others=True,
    ),
)
