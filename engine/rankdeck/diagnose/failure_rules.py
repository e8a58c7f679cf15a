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
_CPU_ADVICE = tr_noop(
    "Run again with CUDA_LAUNCH_BLOCKING=1 in the environment to see the failing line, or run on the "
    "CPU, where the error names the index."
)
_DOCTOR_ADVICE = tr_noop("Check the machine with: rankdeck doctor")
_LOCAL_RANK_ADVICE = tr_noop(
    "In a run, GPU indices start at 0: read the index from LOCAL_RANK, and call "
    "torch.cuda.set_device with it first."
)
_NCCL_ADVICE = tr_noop(
    "Run again with NCCL_DEBUG=INFO: the last NCCL WARN line names the call. Check NCCL_SOCKET_IFNAME, "
    "that each rank has its own GPU, and that /dev/shm has space."
)
_LOST_RANK_TEXT = tr_noop("Another rank ended, or did not reach this collective in time.")
_OTHER_RANKS_ADVICE = tr_noop(
    "Find the first error in the other ranks' logs. If a rank is only slow, pass a longer timeout=... to "
    "init_process_group."
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
        r"(?:can't|[Cc]annot) allocate memory|CUDA out of memory|Cuda failure (?:\d+ )?'out of memory'"
        r"|\b(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|Unable to find a valid cuDNN algorithm",
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
    # Before "shared-memory": both messages name shared memory, but files ran out.
    FailureRule(
        "too-many-files",
        r"received \d+ items of ancdata"
        r"|(?:shared memory object|unable to write to file) </?torch_[^\n]*Too many open files",
        meaning=tr_noop(
            "Each tensor from a DataLoader worker takes one file descriptor, and the process has none left."
        ),
        advice=tr_noop("Raise the limit (ulimit -n), or use fewer workers (data.workers)."),
        script_advice=tr_noop(
            "Call torch.multiprocessing.set_sharing_strategy('file_system') at the start of the script, or "
            "raise the limit (ulimit -n)."
        ),
    ),
    # The sender's exit unlinks the file; a full /dev/shm has another errno.
    FailureRule(
        "sender-gone",
        r"unable to (?:open|resize) (?:shared memory object|file) </?torch_[^\n]*No such file or directory",
        meaning=tr_noop("A tensor's shared memory was removed before another process could open it."),
        advice=tr_noop(
            "Keep the process that sent the tensor alive until the other process has received it: join the "
            "receiver first."
        ),
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
        r".*?Parameters which did not receive grad for rank \d+: (?P<names>[^\n]+)",
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
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration",
        meaning=tr_noop("Some parameters did not contribute to the loss."),
        advice=tr_noop(
            "Set strategy.find_unused_parameters = true, or remove the unused parameters from the model."
        ),
        script_advice=tr_noop(
            "Pass find_unused_parameters=True to DistributedDataParallel, or remove the unused parameters: "
            "TORCH_DISTRIBUTED_DEBUG=INFO names them."
        ),
    ),
    # Lightning replaces torch's message.
    FailureRule(
        "unused-parameters",
        r"your LightningModule has parameters that were not used in producing the loss",
        meaning=tr_noop("Some parameters of the LightningModule did not contribute to the loss."),
        advice=tr_noop(
            'Pass strategy="ddp_find_unused_parameters_true" to the Trainer, or remove the unused parameters '
            "from the model."
        ),
    ),
    # torch names the parameter only with TORCH_DISTRIBUTED_DEBUG, which the observer sets.
    FailureRule(
        "ready-twice",
        r"Expected to mark a variable ready only once.*?with name (?P<name>[\w.]+) has been marked as ready",
        meaning=tr_noop("The gradient of {name} was computed twice in one backward pass."),
        advice=tr_noop("Set strategy.static_graph = true, or use each parameter once per step."),
        script_advice=tr_noop(
            "Pass use_reentrant=False to checkpoint(), or static_graph=True to DistributedDataParallel."
        ),
    ),
    FailureRule(
        "ready-twice",
        r"Expected to mark a variable ready only once",
        meaning=tr_noop("A parameter was used in two forward or backward passes of one step."),
        advice=tr_noop("Set strategy.static_graph = true, or use each parameter once per step."),
        script_advice=tr_noop(
            "Pass use_reentrant=False to checkpoint(), or static_graph=True to DistributedDataParallel."
        ),
    ),
    FailureRule(
        "graph-changed",
        r"Your training graph has changed in this iteration",
        meaning=tr_noop("Steps use different parameters, which static_graph does not allow."),
        advice=tr_noop("Set strategy.static_graph = false and strategy.find_unused_parameters = true."),
        script_advice=tr_noop(
            "In DistributedDataParallel, replace static_graph=True with find_unused_parameters=True."
        ),
    ),
    # A rank that is gone counts as one without parameters.
    FailureRule(
        "rank-missing",
        r"DDP expects same model across all ranks, but Rank \d+ has \d+ params, while rank (?P<rank>\d+) "
        r"has inconsistent 0 params",
        meaning=tr_noop(
            "Rank {rank} ended or got no reply while DistributedDataParallel compared the models."
        ),
        advice=tr_noop(
            "Find the first error in the log of rank {rank}, and check that this rank calls "
            "DistributedDataParallel."
        ),
        is_about_others=True,
    ),
    FailureRule(
        "model-differs",
        r"DDP expects same model across all ranks, but Rank (?P<rank>\d+) has (?P<own>\d+) params, "
        r"while rank (?P<other>\d+) has inconsistent (?P<others>\d+) params",
        meaning=tr_noop(
            "The ranks built different models: rank {rank} has {own} parameter tensors, but rank {other} has "
            "{others}."
        ),
        advice=tr_noop(
            "Build the model from the same code and options on every rank: look for a condition on the rank, "
            "a flag or requires_grad before DistributedDataParallel."
        ),
    ),
    FailureRule(
        "model-differs",
        r"\[(?P<rank>\d+)\]: params\[(?P<index>\d+)\] in this process with sizes (?P<shape>\[[\d, ]*\]) "
        r"appears not to match",
        meaning=tr_noop(
            "The ranks built different models: parameter {index} has shape {shape} on rank {rank}, but a "
            "different shape on rank 0."
        ),
        advice=tr_noop(
            "Build the model with the same sizes on every rank: compute vocabulary and class counts from "
            "the whole data set, not from the rank's share of it."
        ),
    ),
    FailureRule(
        "frozen-model",
        r"DistributedDataParallel is not needed when a module doesn't have any parameter",
        meaning=tr_noop("No parameter of the wrapped model requires a gradient."),
        advice=tr_noop(
            "Call requires_grad_(True) on the layers to train before DistributedDataParallel, and leave a "
            "frozen model unwrapped."
        ),
    ),
    FailureRule(
        "lazy-model",
        r"Modules with uninitialized parameters can't be used with",
        meaning=tr_noop("A lazy layer, such as LazyLinear, has no weight before its first forward pass."),
        advice=tr_noop("Run the model once on a sample batch before wrapping it."),
    ),
    # Python's own AttributeError, raised by nn.Module.__getattr__.
    FailureRule(
        "wrapper-attribute",
        r"'(?P<wrapper>DistributedDataParallel|DataParallel)' object has no attribute '(?P<name>\w+)'",
        meaning=tr_noop("{name} belongs to the model inside the {wrapper} wrapper."),
        advice=tr_noop(
            "Use model.module.{name}; compute the loss through model(...), so that gradients are synced."
        ),
    ),
    FailureRule(
        "device-ids",
        r"device_ids and output_device arguments only work with",
        meaning=tr_noop(
            "The model was not on the GPU in device_ids when DistributedDataParallel wrapped it."
        ),
        advice=tr_noop(
            "Call model.to(local_rank) before DistributedDataParallel(model, device_ids=[local_rank]), and "
            "leave device_ids out on the CPU."
        ),
    ),
    FailureRule(
        "model-on-two-devices",
        r"input module must be on the same type of devices"
        r"|module must have its parameters and buffers on device",
        meaning=tr_noop("Parts of the model are on different devices."),
        advice=tr_noop("Call model.to(device) on the whole model before you wrap it."),
    ),
    FailureRule(
        "sync-batchnorm-on-cpu",
        r"SyncBatchNorm (?:expected input tensor to be on GPU|layers only work with GPU)",
        meaning=tr_noop("SyncBatchNorm works only on GPUs."),
        advice=tr_noop(
            "Call convert_sync_batchnorm only for a model on GPUs; on the CPU, keep BatchNorm and use a "
            "larger batch."
        ),
    ),
    FailureRule(
        "mixed-requires-grad",
        r"Must flatten tensors with uniform `requires_grad`",
        meaning=tr_noop("An FSDP unit has both frozen and trainable parameters, for example with LoRA."),
        advice=tr_noop(
            "Pass use_orig_params=True to FullyShardedDataParallel, or wrap frozen and trainable layers "
            "separately."
        ),
    ),
    FailureRule(
        "mixed-dtypes",
        r"Must flatten tensors with uniform dtype but got (?P<one>[\w.]+) and (?P<other>[\w.]+)"
        r"|FSDP expects uniform original parameter dtype",
        meaning=tr_noop("An FSDP unit has parameters of two dtypes, {one} and {other}."),
        advice=tr_noop(
            "Call model.float() or model.to(torch.bfloat16) before FSDP, and set the compute dtype in "
            "MixedPrecision."
        ),
    ),
    FailureRule(
        "meta-weights",
        r"FSDP parameters should be materialized from meta device|Cannot copy out of meta tensor",
        meaning=tr_noop("Some weights are still on the meta device, which stores no data."),
        advice=tr_noop(
            "Call model.to_empty(device=device), then initialise the weights or load a checkpoint, "
            "before the first forward pass."
        ),
    ),
    FailureRule(
        "fsdp-moved",
        r"An FSDP-managed module (?:unexpectedly has"
        r"|with parameter CPU offloading enabled has) parameters on",
        meaning=tr_noop("FSDP's weights are not on the device on which it computes."),
        advice=tr_noop(
            "Pass device_id=torch.cuda.current_device() to FullyShardedDataParallel, and do not move the "
            "model afterwards."
        ),
    ),
    # FSDP itself rarely notices; libraries around it raise this.
    FailureRule(
        "optimizer-before-sharding",
        r"optimizer (?:should|must) be (?:constructed|created|initialized) after|optimizer state[^\n]*before "
        r"wrapping",
        meaning=tr_noop(
            "The optimizer was created before the model was sharded, so it has the old parameters."
        ),
        advice=tr_noop(
            "Create the optimizer after FullyShardedDataParallel or fully_shard, from model.parameters()."
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
            "Call the module instead of reading its weight, or gather it first (DTensor.full_tensor). Load "
            "weights with set_model_state_dict, and call fully_shard on the root model too."
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
    # gloo searches for an interface by name only if GLOO_SOCKET_IFNAME is set.
    FailureRule(
        "no-interface",
        r"Unable to find address for: *(?P<interface>[^\s\]]+)",
        meaning=tr_noop(
            "GLOO_SOCKET_IFNAME is {interface}, but this machine has no such interface with an address."
        ),
        advice=tr_noop(
            "Unset GLOO_SOCKET_IFNAME, or set it to an interface that `ip -br address` shows; the same is "
            "true of NCCL_SOCKET_IFNAME."
        ),
    ),
    FailureRule(
        "no-interface",
        r"(?:no|No) socket interface found",
        meaning=tr_noop("NCCL found no network interface that NCCL_SOCKET_IFNAME allows."),
        advice=tr_noop("Unset NCCL_SOCKET_IFNAME, or set it to an interface that `ip -br address` shows."),
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
        "process-group-twice",
        r"trying to initialize the default process group twice",
        meaning=tr_noop("init_process_group was called in a process that already has a process group."),
        advice=tr_noop(
            "Call init_process_group once, or only if torch.distributed.is_initialized() is False: "
            "Accelerate, Lightning and "
            "the Trainer call it too."
        ),
    ),
    # Each of these four is a stage of joining, in the order in which a process passes them.
    FailureRule(
        "ranks-did-not-join",
        r"Timed out after \d+ seconds waiting for clients\. (?P<joined>\d+)/(?P<expected>\d+) clients joined",
        meaning=tr_noop("Only {joined} of {expected} processes joined the process group."),
        advice=tr_noop(
            "Start every rank with the same MASTER_ADDR, MASTER_PORT and WORLD_SIZE, and check the logs of "
            "the ranks that did not join; slow ones need init_process_group(timeout=...)."
        ),
        is_about_others=True,
    ),
    FailureRule(
        "ranks-did-not-join",
        r"store based barrier on rank[^\n]*world_size=(?P<expected>\d+), num_workers_joined=(?P<joined>\d+)",
        meaning=tr_noop("Only {joined} of {expected} ranks called init_process_group or new_group."),
        advice=tr_noop(
            "Call init_process_group and new_group on every rank, members or not; slow ranks need a longer "
            "timeout=..."
        ),
        is_about_others=True,
    ),
    FailureRule(
        "ranks-did-not-join",
        r"wait timeout after (?P<milliseconds>\d+)ms, keys: (?P<key>\S+)",
        meaning=tr_noop("No other rank wrote {key} to the store within {milliseconds} ms."),
        advice=tr_noop(
            "Check that every rank reaches this init_process_group, new_group or first collective; slow "
            "ranks need init_process_group(timeout=...)."
        ),
        is_about_others=True,
    ),
    FailureRule(
        "ranks-did-not-join",
        r"RendezvousTimeoutError|[Rr]endezvous[^\n]*timed out",
        meaning=tr_noop("torchrun's agents did not all join the rendezvous in time."),
        advice=tr_noop(
            "Start torchrun on every node with the same --nnodes, --rdzv-id and --rdzv-endpoint, and check "
            "that the port is open."
        ),
        is_about_others=True,
    ),
    FailureRule(
        "device-without-backend",
        r"No backend type associated with device type (?P<device>\w+)",
        meaning=tr_noop("The process group's backend cannot send tensors that are on {device}."),
        advice=tr_noop(
            'Call init_process_group("cpu:gloo,cuda:nccl"), or move the tensor to the backend\'s device '
            "first."
        ),
    ),
    FailureRule(
        "device-without-backend",
        r"Tensors must be CUDA and dense|Tensor must be CUDA"
        r"|ProcessGroupNCCL[^\n]*only supports CUDA tensors",
        meaning=tr_noop("NCCL was called with a tensor that is on the CPU."),
        advice=tr_noop(
            "Move the tensor to the rank's GPU first: tensor.to(local_rank); for objects, call "
            "torch.cuda.set_device(local_rank) first."
        ),
    ),
    FailureRule(
        "reduce-op",
        r"Cannot use (?P<operation>ReduceOp\.\w+) with",
        meaning=tr_noop("The backend does not support {operation}."),
        advice=tr_noop(
            "Use ReduceOp.SUM, and divide the result by torch.distributed.get_world_size() for an average."
        ),
    ),
    FailureRule(
        "not-contiguous",
        r"Tensors must be contiguous|[Tt]ensor must be contiguous",
        meaning=tr_noop(
            "A collective got a tensor that is not contiguous in memory, such as a transposed one."
        ),
        advice=tr_noop("Call tensor.contiguous() before the collective."),
    ),
    FailureRule(
        "mesh-size",
        r"Mesh should not be bigger than default world size (?P<world_size>\d+), but found (?P<size>\d+)",
        meaning=tr_noop("The device mesh has {size} ranks, but the run has {world_size}."),
        advice=tr_noop(
            "Make the product of the sizes in init_device_mesh equal to the world size, or start {size} "
            "ranks."
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
        advice=tr_noop("Start the script with: rankdeck run --nproc-per-node N SCRIPT (without --plain)"),
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
        advice=tr_noop("Start one process without torchrun's variables: rankdeck run --plain."),
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
        script_advice=_CPU_ADVICE,
    ),
    FailureRule(
        "gpu-fault",
        r"illegal memory access|misaligned address|illegal instruction was encountered"
        r"|unspecified launch failure",
        meaning=tr_noop("A GPU kernel failed."),
        advice=_LAUNCH_BLOCKING_ADVICE,
    ),
    # In exclusive mode a second process fails at its first allocation.
    FailureRule(
        "gpu-busy",
        r"(?:all )?CUDA-capable device(?:\(s\)|s)? (?:is/are|are) busy or unavailable",
        meaning=tr_noop("Another process is using the GPU exclusively, or the GPU accepts no new processes."),
        advice=tr_noop(
            "End the other process (nvidia-smi lists it), or set the compute mode to default: nvidia-smi "
            "-c 0."
        ),
    ),
    # Without memory for its workspace, a library reports that it is not initialised.
    FailureRule(
        "gpu-library",
        r"\b(?:CUBLAS|CUDNN|CUSPARSE|CUSOLVER)_STATUS_(?:NOT_INITIALIZED|INTERNAL_ERROR|EXECUTION_FAILED)",
        meaning=tr_noop(
            "A CUDA library failed, usually because GPU memory is full or an earlier operation used an index "
            "that is out of range."
        ),
        advice=_LAUNCH_BLOCKING_ADVICE,
        script_advice=tr_noop(
            "Run again with CUDA_LAUNCH_BLOCKING=1 in the environment and a smaller batch; if that fails "
            "too, run on the CPU, where the error names the index."
        ),
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
        r"Torch not compiled with CUDA enabled",
        meaning=tr_noop("The installed torch is a CPU build, so it cannot use a GPU."),
        advice=tr_noop("Install a CUDA build of torch. Check the machine with: rankdeck doctor"),
        script_advice=tr_noop(
            'Install a CUDA build of torch, or use device = "cuda" if torch.cuda.is_available() else "cpu".'
        ),
    ),
    # torch.load, not a computation: the fix is an argument.
    FailureRule(
        "no-cuda",
        r"Attempting to deserialize object on (?:a )?\w+ device",
        meaning=tr_noop("The file was saved on a GPU that this process does not have."),
        advice=tr_noop('Pass map_location="cpu" to torch.load, then move the model to its device.'),
    ),
    FailureRule(
        "no-cuda",
        r"Found no NVIDIA driver|No CUDA GPUs are available|CUDA driver initialization failed"
        r"|CUDA unknown error - this may be due to an incorrectly set up environment",
        meaning=tr_noop("No GPU is visible to this Python process."),
        advice=_DOCTOR_ADVICE,
        script_advice=tr_noop(
            "Check that CUDA_VISIBLE_DEVICES names existing GPUs, and check the machine with: rankdeck doctor"
        ),
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
        r".*?at least two devices, (?P<one>[\w:]+)(?: and |, )(?P<other>[\w:]+\w)",
        meaning=tr_noop("An operation got tensors on {one} and {other}."),
        advice=tr_noop(
            "Create tensors on the inputs' device (device=x.device), and register constants as "
            "buffers of the model."
        ),
    ),
    FailureRule(
        "devices-mixed",
        r"Expected all tensors to be on the same device, but got (?P<argument>\w+) is on (?P<one>[\w:]+), "
        r"different from other tensors on (?P<other>[\w:]+\w)",
        meaning=tr_noop("The argument {argument} is on {one}, but the other tensors are on {other}."),
        advice=tr_noop(
            "Move the batch and the model to one device with .to(device), and register constants as buffers "
            "of the model."
        ),
    ),
    # torch says that types differ, but the devices do.
    FailureRule(
        "devices-mixed",
        r"Input type \(torch\.cuda\.\w+\) and (?:weight|bias) type \(torch\.(?!cuda)\w+\)",
        meaning=tr_noop("The input is on the GPU, but the layer's weight is on the CPU."),
        advice=tr_noop(
            "Call model.to(device) before training; a list of layers must be an nn.ModuleList to move too."
        ),
    ),
    FailureRule(
        "devices-mixed",
        r"Input type \(torch\.(?!cuda)\w+\) and (?:weight|bias) type \(torch\.cuda\.\w+\)",
        meaning=tr_noop("The layer's weight is on the GPU, but the input is on the CPU."),
        advice=tr_noop("Move the batch to the model's device in the loop: x = x.to(device)."),
    ),
    FailureRule(
        "devices-mixed",
        r"Expected all tensors to be on the same device"
        r"|indices should be either on cpu or on the same device as the indexed tensor"
        r"|Tensor for argument .{,40} is on \w+ but expected on",
        meaning=tr_noop("An operation got tensors on two devices."),
        advice=tr_noop("Move both tensors to one device before that line: index = index.to(x.device)."),
    ),
    FailureRule(
        "numpy-of-gpu-tensor",
        r"can't convert \w+(?::\d+)? device type tensor to numpy"
        r"|Can't call numpy\(\) on Tensor that requires",
        meaning=tr_noop("numpy can read only tensors on the CPU that need no gradient."),
        advice=tr_noop("Convert the tensor with tensor.detach().cpu().numpy()."),
    ),
    FailureRule(
        "pinned-twice",
        r"cannot pin '[\w.]+' only dense CPU tensors can be pinned",
        meaning=tr_noop("The data set returns GPU tensors, which cannot be pinned."),
        advice=tr_noop(
            "Return CPU tensors from the data set and move the batch in the loop, or pass pin_memory=False."
        ),
    ),
    FailureRule(
        "generator-device",
        r"Expected a '\w+' device type for generator but found '(?P<device>\w+)'",
        meaning=tr_noop("The random generator is on {device}, not on the default device."),
        advice=tr_noop(
            "Pass generator=torch.Generator(device=...) to the DataLoader, or drop set_default_device and "
            "move tensors with .to(device)."
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
        "input-too-small",
        r"Kernel size: \((?P<kernel>[\dx ]+)\)\. Kernel size can't be greater than actual input size"
        r"|Output size is too small|Expected more than 1 spatial element when training",
        meaning=tr_noop("The image or sequence became smaller than the layer's window."),
        advice=tr_noop(
            "Use larger inputs, add padding, or use fewer or smaller strides and poolings before that layer."
        ),
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
    # Before "dtype-mismatch": a loss needs integers, not the model's dtype.
    FailureRule(
        "target-dtype",
        r"expected target dtype to be Long or Byte, but got (?P<actual>\w+)"
        r"|\"nll_loss\w*\" not implemented for '(?P<other>\w+)'"
        r"|expected scalar type Long but found (?P<found>\w+)",
        meaning=tr_noop("Class indices must be integers of dtype torch.long."),
        advice=tr_noop(
            "Pass targets.long() to the loss; floating-point targets need class probabilities or another "
            "loss."
        ),
    ),
    FailureRule(
        "index-dtype",
        r"tensors used as indices must be|argument #\d+ 'indices' to have one of the following scalar types",
        meaning=tr_noop("Indices must be integers, but the tensor has another dtype."),
        advice=tr_noop("Call .long() on the token IDs or indices before that line."),
    ),
    FailureRule(
        "unsafe-autocast",
        r"binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast",
        meaning=tr_noop("BCELoss loses precision in half precision, so autocast refuses it."),
        advice=tr_noop(
            "Use binary_cross_entropy_with_logits (BCEWithLogitsLoss), and remove the sigmoid before the "
            "loss."
        ),
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
    # The rules with sizes come before the one without.
    FailureRule(
        "shape-mismatch",
        r"shapes cannot be multiplied \(\d+x(?P<actual>\d+) and (?P<expected>\d+)x\d+\)",
        meaning=tr_noop("A layer expects {expected} features, but its input has {actual}."),
        advice=tr_noop(
            "Set the layer's in_features to {actual}, or flatten or transpose the input before it."
        ),
    ),
    FailureRule(
        "shape-mismatch",
        r"expected input\[.*?\] to have (?P<expected>\d+) channels, but got (?P<actual>\d+) channels",
        meaning=tr_noop("A convolution expects {expected} channels, but its input has {actual}."),
        advice=tr_noop(
            "Put the channels first, as in (N, C, H, W), with x.permute(0, 3, 1, 2), or set in_channels to "
            "{actual}."
        ),
    ),
    FailureRule(
        "shape-mismatch",
        r"input batch_size \((?P<outputs>\d+)\) to match target batch_size \((?P<targets>\d+)\)",
        meaning=tr_noop("The loss got {outputs} outputs for {targets} targets."),
        advice=tr_noop(
            "Flatten both the same way: loss(logits.flatten(0, -2), targets.flatten()), and keep the batch "
            "dimension in view()."
        ),
    ),
    FailureRule(
        "shape-mismatch",
        r"[Tt]arget size \((?:torch\.Size\()?(?P<target>\[[\d, ]*\])\)+ (?:must be the same as|that is "
        r"different to the) input size \((?:torch\.Size\()?(?P<output>\[[\d, ]*\])",
        meaning=tr_noop("The loss got outputs of shape {output} and targets of shape {target}."),
        advice=tr_noop("Make the two shapes equal: output.squeeze(1), or targets.unsqueeze(1)."),
    ),
    FailureRule(
        "shape-mismatch",
        r"multi-target not supported|only batches of spatial targets supported",
        meaning=tr_noop("The targets have one dimension too many for class indices."),
        advice=tr_noop("Pass targets.squeeze(1) to the loss, or targets.argmax(1) if they are one-hot."),
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
        meaning=tr_noop(
            "A tensor that the backward pass needs was modified after the forward pass had used it."
        ),
        advice=tr_noop(
            "Write x = x + y instead of x += y; torch.autograd.set_detect_anomaly(True) shows where."
        ),
        script_advice=tr_noop(
            "Write x = x + y instead of x += y; torch.autograd.set_detect_anomaly(True) shows where. If "
            "DistributedDataParallel runs two forward passes before the backward pass, pass "
            "broadcast_buffers=False to it."
        ),
    ),
    FailureRule(
        "modified-in-place",
        r"is a view and is being modified inplace|view was created inside a custom Function[^\n]*inplace",
        meaning=tr_noop(
            "A view that autograd needs, such as one from unbind or split, was modified in place."
        ),
        advice=tr_noop("Write x = x + y instead of x += y, or call .clone() on the view first."),
    ),
    FailureRule(
        "inference-tensor",
        r"[Ii]nference tensors? (?:cannot be saved for backward|outside InferenceMode)",
        meaning=tr_noop("A tensor from torch.inference_mode() is used in training."),
        advice=tr_noop("Use torch.no_grad() instead of torch.inference_mode(), or clone the tensor."),
    ),
    FailureRule(
        "unused-input",
        r"differentiated Tensors? (?:at index \d+ )?(?:appears to not have been used|does not require grad)",
        meaning=tr_noop("torch.autograd.grad got an input on which the output does not depend."),
        advice=tr_noop(
            "Call requires_grad_() on the input before the forward pass and use that tensor, or pass "
            "allow_unused=True."
        ),
    ),
    FailureRule(
        "nan-in-backward",
        r"Function '(?P<function>\w+)' returned nan values in its (?P<output>\d+)th output",
        meaning=tr_noop(
            "The backward pass through {function} computed NaN, as happens for sqrt, log or a division at 0."
        ),
        advice=tr_noop(
            "Add a small eps or clamp there: the warning above the error shows the line of the forward pass."
        ),
    ),
    # torch.distributions checks its parameters when a distribution is created.
    FailureRule(
        "nan-outputs",
        r"Expected parameter (?P<name>\w+) .{,200}to satisfy the constraint (?P<constraint>[\w(), .=]+?),? "
        r"but "
        r"found invalid values",
        meaning=tr_noop("The model's {name} for the distribution is NaN or violates {constraint}."),
        advice=tr_noop(
            "If it is NaN, lower the learning rate or clip gradients; make a scale positive with softplus "
            "or exp."
        ),
    ),
    FailureRule(
        "nan-outputs",
        r"probability tensor contains either `inf`, `nan` or element < 0",
        meaning=tr_noop("The probabilities to sample from are NaN, infinite or negative."),
        advice=tr_noop(
            "Compute the softmax in float32 and check the logits with torch.isfinite; a row masked entirely "
            "with -inf gives NaN."
        ),
    ),
    FailureRule(
        "not-probabilities",
        r"all elements of (?:input|target) should be between 0 and 1",
        meaning=tr_noop("BCELoss needs probabilities, but got values outside 0 to 1, or NaN."),
        advice=tr_noop("Use BCEWithLogitsLoss on the raw outputs, or apply a sigmoid before BCELoss."),
    ),
    # An EMA or a target network copies the model; nn.Module itself needs no graph.
    FailureRule(
        "deepcopy-of-graph",
        r"Only Tensors created explicitly by the user",
        meaning=tr_noop("copy.deepcopy reached a tensor that was computed from parameters."),
        advice=tr_noop(
            "Call .detach() on tensors that the model stores between steps, and copy the model before "
            "the forward pass."
        ),
    ),
    FailureRule(
        "graph-sent",
        r"Cowardly refusing to serialize non-leaf tensor which requires_grad"
        r"|stack\(\): functions with out=[^\n]*requires grad",
        meaning=tr_noop("A tensor that requires a gradient was sent to another process."),
        advice=tr_noop("Call .detach() on the tensors that the data set or worker returns."),
    ),
    FailureRule(
        "overwritten-graph-output",
        r"accessing tensor output of CUDAGraphs that has been overwritten",
        meaning=tr_noop("A compiled model's output is used after the model's next run has overwritten it."),
        advice=tr_noop(
            "Call .clone() on the output, or torch.compiler.cudagraph_mark_step_begin() before each call."
        ),
    ),
    FailureRule(
        "rnn-in-eval",
        r"(?:cudnn|cuDNN) RNN backward can only be called in training mode",
        meaning=tr_noop("The backward pass runs through an RNN that is in eval mode."),
        advice=tr_noop(
            "Call model.train() before the forward pass; to freeze the RNN, use requires_grad_(False)."
        ),
    ),
    FailureRule(
        "ambiguous-truth",
        r"Boolean value of Tensor with more than one value is ambiguous",
        meaning=tr_noop("A tensor of several elements is used as a condition."),
        advice=tr_noop(
            "Use .any(), .all() or torch.where; create a loss class before calling it: nn.MSELoss()(x, y)."
        ),
    ),
    FailureRule(
        "not-scalar",
        r"Tensor with \d+ elements cannot be converted to Scalar"
        r"|only one element tensors can be converted to Python scalars",
        meaning=tr_noop("A tensor of several elements is converted to one number."),
        advice=tr_noop("Take the tensor's .mean() or .sum() first, or use .tolist()."),
    ),
    FailureRule(
        "view-needs-copy",
        r"view size is not compatible with input tensor's size and stride",
        meaning=tr_noop("view() cannot reorder a tensor that was transposed or permuted."),
        advice=tr_noop("Use .reshape(...) instead of .view(...)."),
    ),
    FailureRule(
        "negative-strides",
        r"tensors with negative strides are not currently supported",
        meaning=tr_noop("A numpy array was flipped or reversed, which torch cannot read without a copy."),
        advice=tr_noop("Call .copy() on the array before torch.from_numpy or the transform to a tensor."),
    ),
    # Optimizers and schedulers
    FailureRule(
        "schedule-too-short",
        r"Tried to step (?P<steps>\d+) times\. The specified number of total steps is (?P<total>\d+)",
        meaning=tr_noop("OneCycleLR was created for {total} steps, but step() was called {steps} times."),
        advice=tr_noop(
            "Pass total_steps=epochs * len(loader) to OneCycleLR, or epochs and "
            "steps_per_epoch=len(loader); in "
            "a resumed run, load the scheduler's state_dict."
        ),
    ),
    FailureRule(
        "no-parameters",
        r"optimizer got an empty parameter list",
        types=("ValueError",),
        meaning=tr_noop("The optimizer got no parameters."),
        advice=tr_noop(
            "Put the layers into nn.ModuleList instead of a list, and call model.parameters() again for each "
            "use: a generator is empty after its first use."
        ),
    ),
    FailureRule(
        "not-a-parameter",
        r"can't optimize a non-leaf Tensor|optimizer can only optimize Tensors, but one of the params is",
        meaning=tr_noop("The optimizer got something that is not a parameter."),
        advice=tr_noop(
            "Pass model.parameters() after model.to(device), or create the tensor with nn.Parameter on its "
            "device."
        ),
    ),
    FailureRule(
        "parameter-in-two-groups",
        r"some parameters appear in more than one parameter group",
        meaning=tr_noop("A parameter, such as a tied weight, is in two groups of the optimizer."),
        advice=tr_noop(
            "Build the groups from model.named_parameters(), and put each parameter in one group."
        ),
    ),
    # A KeyError, whose text is in quotes.
    FailureRule(
        "schedule-not-resumed",
        r"param 'initial_lr' is not specified in param_groups",
        meaning=tr_noop("A scheduler with last_epoch needs an optimizer that a scheduler has used before."),
        advice=tr_noop(
            "Load the optimizer's state_dict before you create the scheduler, or create it without "
            "last_epoch and load its state_dict."
        ),
    ),
    FailureRule(
        "closure-missing",
        r"step\(\) missing 1 required positional argument: 'closure'",
        types=("TypeError",),
        meaning=tr_noop("This optimizer evaluates the loss several times per step."),
        advice=tr_noop(
            "Pass a function to step() that calls zero_grad, computes the loss, calls backward and "
            "returns the loss."
        ),
    ),
    FailureRule(
        "graph-freed",
        r"backward through the graph a second time",
        meaning=tr_noop(
            "The backward pass ran twice for one forward pass, or a tensor stored between steps still "
            "has an earlier step's graph."
        ),
        advice=tr_noop(
            "Detach tensors that are stored between steps (state.detach()), and call backward once."
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
        advice=tr_noop("Modify the parameter under torch.no_grad()."),
    ),
    FailureRule(
        "not-scalar",
        r"grad can be implicitly created only for scalar outputs",
        meaning=tr_noop("The loss is not a scalar."),
        advice=tr_noop("Return the sum or the mean of the loss."),
    ),
    FailureRule(
        "scaler-order",
        r"No inf checks were recorded",
        meaning=tr_noop("The gradient scaler found no gradients in the optimizer's parameters."),
        advice=tr_noop(
            "Call scaler.scale(loss).backward() before scaler.step(optimizer), on a loss that uses that "
            "optimizer's parameters."
        ),
    ),
    FailureRule(
        "scaler-order",
        r"unscale_\(\) (?:has already been|is being) called|step\(\) has already been called since the last",
        meaning=tr_noop("The gradient scaler was used twice for one optimizer without an update."),
        advice=tr_noop(
            "Per optimizer step, call scaler.unscale_ at most once, then scaler.step and scaler.update."
        ),
    ),
    FailureRule(
        "scaler-order",
        r"Attempting to unscale FP16 gradients",
        meaning=tr_noop(
            "The model's weights are in fp16, and so are their gradients, which the gradient scaler cannot "
            "unscale."
        ),
        advice=tr_noop(
            "Leave the weights in fp32 (remove model.half() or torch_dtype=float16), and use torch.autocast."
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
            "Pad or crop samples to the same shape in the data set, or add a read_batch(indices) "
            "that returns a whole batch, as a collate_fn does."
        ),
        script_advice=tr_noop("Pad or crop samples to the same shape in the data set, or pass a collate_fn."),
    ),
    # A worker stacks into shared memory that has the first sample's size.
    FailureRule(
        "ragged-samples",
        r"Trying to resize storage that is not resizable",
        meaning=tr_noop("Samples of a batch differ in shape, and a DataLoader worker could not stack them."),
        advice=tr_noop("Pad or crop samples to the same shape in the data set."),
        script_advice=tr_noop("Pad or crop samples to the same shape in the data set, or pass a collate_fn."),
    ),
    FailureRule(
        "sample-is-none",
        r"default_collate: batch must contain .*?; found <class 'NoneType'>",
        meaning=tr_noop("The data set returned None for a sample."),
        advice=tr_noop(
            "Return a value on every path of __getitem__, or drop the None samples in a collate_fn."
        ),
    ),
    FailureRule(
        "sample-type",
        r"default_collate: batch must contain .*?; found <class '(?P<type>[\w.]+)'>",
        meaning=tr_noop("The data set returned a {type}, which the DataLoader cannot make a batch of."),
        advice=tr_noop(
            "Convert the value to a tensor in __getitem__ (for images: transforms.ToTensor()), "
            "or pass a collate_fn."
        ),
    ),
    FailureRule(
        "empty-dataset",
        r"num_samples should be a positive integer value, but got num_samples=0",
        meaning=tr_noop("The data set is empty."),
        advice=tr_noop("Print len(dataset), and check the folder and file pattern from which it is built."),
    ),
    FailureRule(
        "sampler-and-shuffle",
        r"sampler option is mutually exclusive with|batch_sampler option is mutually exclusive with",
        meaning=tr_noop("The DataLoader got a sampler and an option that the sampler replaces."),
        advice=tr_noop(
            "Remove shuffle=True from the DataLoader: pass shuffle=True to DistributedSampler, and call "
            "sampler.set_epoch(epoch)."
        ),
    ),
    # The two messages have no common words.
    FailureRule(
        "loader-without-workers",
        r"persistent_workers option needs num_workers > 0"
        r"|(?:prefetch_factor|timeout) option could only be specified in multiprocessing",
        meaning=tr_noop("The DataLoader got an option for workers, but num_workers is 0."),
        advice=tr_noop(
            "Pass num_workers=1 or more, or remove persistent_workers, prefetch_factor and timeout."
        ),
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
    # Python 3.12 and 3.14 have changed this message.
    FailureRule(
        "not-picklable",
        r"Can't (?:pickle|get) (?:local object )?'?(?:<function )?(?P<owner>[\w.<>]*?)\.?<locals>\."
        r"(?P<name>\w+|<lambda>)",
        meaning=tr_noop("{name} is defined inside {owner}, so it cannot be sent to a new process."),
        advice=tr_noop(
            "Move {name} to the top of the file (functools.partial can pass it values), or use the fork "
            "start method."
        ),
    ),
    FailureRule(
        "not-picklable",
        r"Can't pickle <function <lambda>",
        meaning=tr_noop("A lambda cannot be sent to another process."),
        advice=tr_noop("Replace the lambda with a function at the top of the file, defined with def."),
    ),
    FailureRule(
        "not-picklable",
        r"[Cc]annot pickle '?(?P<type>[\w.]+)'? object",
        meaning=tr_noop("A {type} object cannot be sent to another process."),
        advice=tr_noop(
            "Create the object in the process that uses it: in __getitem__ on first use, or in "
            "worker_init_fn."
        ),
    ),
    FailureRule(
        "not-picklable",
        r"Can't (?:pickle|get local object)|[Cc]annot pickle ",
        meaning=tr_noop("An object sent to another process cannot be pickled."),
        advice=tr_noop("Define it at module level, without lambdas, nested functions or open files."),
    ),
    FailureRule(
        "start-method",
        r"context has already been set",
        types=("RuntimeError",),
        meaning=tr_noop("The start method for processes has already been set."),
        advice=tr_noop(
            'Call set_start_method once, as the first statement below `if __name__ == "__main__":`, or '
            "pass multiprocessing_context to the DataLoader."
        ),
    ),
    FailureRule(
        "worker-starts-workers",
        r"daemonic processes are not allowed to have children",
        meaning=tr_noop("A DataLoader worker or pool process tried to start processes of its own."),
        advice=tr_noop("Use num_workers=0 inside that process, or start it with daemon=False."),
    ),
    FailureRule(
        "spawned-process-died",
        r"process (?P<number>\d+) terminated with (?P<end>signal \w+|exit code \d+)",
        types=("ProcessExitedException",),
        meaning=tr_noop("Process {number} of mp.spawn ended with {end} and raised no exception."),
        advice=tr_noop(
            "Look for os._exit in the function that mp.spawn runs, and check with dmesg whether memory "
            "ran out."
        ),
    ),
    FailureRule(
        "no-main-guard",
        r"before the\s+current process has finished its bootstrapping phase",
        meaning=tr_noop("The script starts processes when a child process imports it."),
        advice=tr_noop('Move the code that starts processes below `if __name__ == "__main__":`.'),
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
    # Before the general rule: a prefix is a wrapper's, not another model's.
    FailureRule(
        "checkpoint-mismatch",
        r"(?:Missing|Unexpected) key\(s\) in state_dict: [^\n]*\"_orig_mod\.",
        types=("RuntimeError",),
        meaning=tr_noop("Only the file's parameter names, or only the model's, start with \"_orig_mod.\"."),
        advice=tr_noop(
            "That prefix is from torch.compile: save and load the uncompiled model, model._orig_mod."
        ),
    ),
    FailureRule(
        "checkpoint-mismatch",
        r"size mismatch for (?P<name>[\w.]+): copying a param with shape torch\.Size\((?P<file>\[[\d, "
        r"]*\])\) "
        r"from checkpoint, the shape in current model is torch\.Size\((?P<model>\[[\d, ]*\])\)",
        meaning=tr_noop("{name} has shape {file} in the file, but {model} in the model."),
        advice=tr_noop(
            "Build the model with the file's sizes; to replace a head, delete its keys before "
            "load_state_dict(strict=False)."
        ),
    ),
    FailureRule(
        "checkpoint-mismatch",
        r"Missing key\(s\) in state_dict: \"(?P<name>[^\"]+)\"",
        meaning=tr_noop("The file lacks the weights {name}, and possibly other weights of the model."),
        advice=tr_noop(
            "Build the model with the same options as when the file was saved, or rename the keys; "
            "strict=False would leave the missing weights at random values."
        ),
    ),
    FailureRule(
        "checkpoint-mismatch",
        r"Missing key in checkpoint state_dict: (?P<name>[\w./-]*\w)",
        meaning=tr_noop("The checkpoint has no entry {name}."),
        advice=tr_noop(
            "Load with the keys that were saved, or pass DefaultLoadPlanner(allow_partial_load=True)."
        ),
    ),
    FailureRule(
        "checkpoint-mismatch",
        r"Size mismatch between saved (?P<file>torch\.Size\(.*?\)) and current: "
        r"(?P<model>torch\.Size\(.*?\))",
        meaning=tr_noop("A tensor has shape {file} in the checkpoint, but {model} in the model."),
        advice=tr_noop("Build the model with the same options as when the checkpoint was saved."),
    ),
    FailureRule(
        "checkpoint-mismatch",
        r"loaded state dict (?:has a different|contains a parameter)",
        meaning=tr_noop(
            "The file's optimizer state belongs to parameter groups that differ from this optimizer's."
        ),
        advice=tr_noop(
            "Create the optimizer from the same parameters in the same groups as when the file was saved."
        ),
    ),
    FailureRule(
        "checkpoint-mismatch",
        r"Error\(s\) in loading state_dict for \w+",
        meaning=tr_noop("The file contains the weights of a different model."),
        advice=tr_noop("Build the model with the same options as when the file was saved."),
    ),
    # Before "unreadable-weights", which matches the first line of the same text.
    FailureRule(
        "weights-only",
        r"Unsupported (?:global: GLOBAL|class) (?P<name>[\w.]+) was not an allowed global by default",
        meaning=tr_noop(
            "The file contains {name}, and torch.load reads only tensors and plain data by default."
        ),
        advice=tr_noop(
            "If you trust the file, pass weights_only=False to torch.load, or allow the type with "
            "torch.serialization.add_safe_globals."
        ),
    ),
    FailureRule(
        "unreadable-weights",
        r"PytorchStreamReader failed|Weights only load failed|invalid load key|header too (?:large|small)"
        r"|Error while deserializing header",
        meaning=tr_noop("The file is truncated, damaged, or not a weights file."),
        advice=tr_noop(
            "Use another copy of the file, or an older checkpoint; if it is a Git LFS pointer, run: git "
            "lfs pull"
        ),
    ),
    # Packages and files
    FailureRule(
        "no-module",
        r"No module named '(?P<name>[^']+)'",
        types=("ModuleNotFoundError",),
        meaning=tr_noop("The run's interpreter has no module {name}."),
        advice=tr_noop("Install the package that provides the module, or correct its name."),
    ),
    FailureRule(
        "broken-install",
        r"undefined symbol|cannot open shared object file|version `[^']+' not found|DLL load failed",
        meaning=tr_noop("A compiled package is not compatible with this Python, torch or system."),
        advice=tr_noop("Reinstall the package for this torch. Check the machine with: rankdeck doctor"),
    ),
    FailureRule(
        "compile-unsupported",
        r"Dynamo is not supported on Python|torch\.compile is not supported on Python",
        meaning=tr_noop("This torch cannot compile under this version of Python."),
        advice=tr_noop("Set train.compile = false, or install a newer torch."),
        script_advice=tr_noop("Leave torch.compile out, or install a newer torch or an older Python."),
    ),
    # Only fullgraph=True raises these; otherwise torch runs the line uncompiled.
    FailureRule(
        "compile-unsupported",
        r"Failed to trace|[Gg]raph break|torch\.\* op returned non-Tensor|recompile_limit reached",
        types=("Unsupported", "FailOnRecompileLimitHit", "RecompileLimitExceeded"),
        meaning=tr_noop("torch.compile cannot compile a line of the model in one graph."),
        advice=tr_noop("Set train.compile = false."),
        script_advice=tr_noop(
            "Remove fullgraph=True, or move that line out of the compiled function (torch.compiler.disable)."
        ),
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
    # Before the types below, which match every error of NCCL.
    FailureRule(
        "nccl-system-error",
        r"ncclSystemError|NCCL[^\n]*unhandled system error",
        meaning=tr_noop("A system call in NCCL failed, for a connection, shared memory or a device."),
        advice=_NCCL_ADVICE,
        is_about_others=True,
    ),
    FailureRule(
        "nccl-cuda-error",
        r"ncclUnhandledCudaError|NCCL[^\n]*unhandled cuda error",
        meaning=tr_noop("A CUDA call in NCCL failed."),
        advice=_NCCL_ADVICE,
        is_about_others=True,
    ),
    FailureRule(
        COMMUNICATION,
        types=("DistBackendError", "DistNetworkError", "DistStoreError"),
        meaning=_LOST_RANK_TEXT,
        advice=_OTHER_RANKS_ADVICE,
        is_about_others=True,
    ),
    FailureRule(
        COMMUNICATION,
        r"(?i)gloo/|\bgloo\b[^\n]*(?:timeout|closed|failed)|Connection closed by peer"
        r"|Timed out (?:waiting|after)"
        r"|NCCL (?:error|operation|communicator)|nccl\w*Error|Watchdog caught collective|wait timeout"
        r"|ProcessGroup(?:NCCL|Gloo)|TCPStore|c10d|recvValue failed|sendBytes failed|monitored ?barrier"
        r"|Rank \d+ successfully reached",
        types=("RuntimeError", ""),
        meaning=_LOST_RANK_TEXT,
        advice=_OTHER_RANKS_ADVICE,
        is_about_others=True,
    ),
)
