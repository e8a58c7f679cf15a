"""The rules about errors, one cause after the other; the first that fits names it.

Words are those of Python, torch, gloo, NCCL and CUDA. A rule asks for no more of them than tells one cause
from another, so that the next version's still fit. Read exceptions.py next.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rankdeck.base.phrases import marked

DISK = "disk-error"
COMMUNICATION = "communication"
"""The code of an error that only says that other ranks have gone or not arrived."""


@dataclass(frozen=True)
class Rule:
    """`types`: names of exceptions, any where there are none; `words` are searched for in the text, and
    what they name may stand in the sentences. `advice` is to whoever wrote a configuration, `to_scripts` to
    whoever wrote a script, where that differs. `of_others`: it tells of another rank's end or absence, not of
    its own.
    """

    code: str
    words: str = ""
    types: tuple[str, ...] = ()
    says: str = ""
    advice: str = ""
    to_scripts: str = ""
    of_others: bool = False
    pattern: re.Pattern[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "pattern", re.compile(self.words, re.DOTALL))

    def match(self, kind: str, text: str) -> re.Match[str] | None:
        if self.types and kind not in self.types:
            return None
        return self.pattern.search(text)


_RUN_BLOCKING = marked(
    "Run it again with CUDA_LAUNCH_BLOCKING=1 in the environment to be shown the line, or rehearse it on "
    "the CPU."
)
_DOCTOR = marked("Look the machine over with: rankdeck doctor")
_OWN_GPU = marked(
    "Inside a run GPUs count from 0: take the number from LOCAL_RANK, and call torch.cuda.set_device with"
    " it first."
)

RULES: tuple[Rule, ...] = (
    # Room
    Rule(
        "out-of-memory",
        types=("MemoryError", "OutOfMemoryError"),
        advice=marked(
            "Lower train.global_batch, raise train.accumulate, or set train.activation_checkpointing = true."
        ),
        to_scripts=marked("Lower the batch size or the size of the model, or use more devices."),
    ),
    Rule(
        "out-of-memory",
        r"can't allocate memory|CUDA out of memory|\b(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED",
        advice=marked(
            "Lower train.global_batch, raise train.accumulate, or set train.activation_checkpointing = true."
        ),
        to_scripts=marked("Lower the batch size or the size of the model, or use more devices."),
    ),
    Rule(
        "kernel-too-large",
        types=("OutOfResources",),
        says=marked("A compiled kernel needs more of the GPU's own memory than a block may have."),
        advice=marked("Set train.compile = false, or use a smaller model."),
        to_scripts=marked("Leave torch.compile out there, or use smaller blocks."),
    ),
    Rule(
        "shared-memory",
        r"(?i)shared memory|bus error|/dev/shm/|unable to write to file </?torch_",
        advice=marked("Set data.workers = 0, or give /dev/shm more room."),
        to_scripts=marked("Set num_workers=0 in the DataLoader, or give /dev/shm more room."),
    ),
    Rule(
        "disk-full",
        r"No space left on device",
        advice=marked("Free space on the disk, then run again."),
    ),
    Rule(
        "disk-full",
        r"Disk quota exceeded",
        says=marked("What this user may keep on that disk is used up."),
        advice=marked(
            "Remove something there (quota -s tells how much), or choose another folder with --runs."
        ),
    ),
    Rule(
        "file-too-large",
        r"File too large",
        says=marked("No file may grow that far, by a limit of the process or of the file system."),
        advice=marked("Raise the limit (ulimit -f), or choose a folder on another file system with --runs."),
    ),
    Rule(
        DISK,
        r"Input/output error|Read-only file system|Stale file handle|Structure needs cleaning"
        r"|Transport endpoint is not connected",
        says=marked("The disk, or the connection to it, has failed."),
        advice=marked("See what the kernel says of it (dmesg), or choose another folder with --runs."),
    ),
    Rule(
        "too-many-processes",
        r"can't start new thread|(\[Errno 11\] |^)Resource temporarily unavailable|pthread_create failed",
        says=marked("No more processes or threads may be started here."),
        advice=marked("Raise the limit (ulimit -u, or pids.max of the container), or use fewer ranks."),
    ),
    Rule(
        "too-many-files",
        r"Too many open files",
        says=marked("The process may hold no more files and connections."),
        advice=marked("Raise the limit (ulimit -n), or use fewer data.workers."),
        to_scripts=marked(
            "Raise the limit (ulimit -n), or call torch.multiprocessing.set_sharing_strategy('file_system')."
        ),
    ),
    # Gradients that meet
    Rule(
        "unused-parameters",
        r"Expected to have finished reduction in the prior iteration"
        r"(?:.*?Parameters which did not receive grad for rank \d+: (?P<names>[^\n]+))?",
        says=marked("These took no part in the loss: {names}."),
        advice=marked(
            "Set strategy.find_unused_parameters = true, or take what is not used out of the model."
        ),
        to_scripts=marked(
            "Pass find_unused_parameters=True to DistributedDataParallel, or take what is not used out of"
            " the "
            "model."
        ),
    ),
    Rule(
        "ready-twice",
        r"Expected to mark a variable ready only once",
        says=marked("A parameter took part in two forwards or two backwards of one step."),
        advice=marked("Set strategy.static_graph = true, or let each parameter take part once a step."),
        to_scripts=marked(
            "Pass static_graph=True to DistributedDataParallel, or use_reentrant=False to checkpoint()."
        ),
    ),
    Rule(
        "collectives-differ",
        r"Detected mismatch between collectives on ranks|Received data size doesn't match expected size",
        says=marked("Ranks called different collectives, or the same one with other shapes."),
        advice=marked("Have every rank call the same collectives, in the same order, with the same shapes."),
    ),
    Rule(
        "weight-in-slices",
        r"got mixed torch.Tensor and DTensor",
        says=marked("Code outside of a layer reads a weight of which this rank holds a slice."),
        advice=marked("Call the layer instead of reading its weight, or set strategy.use = ddp."),
        to_scripts=marked(
            "Call the module instead of reading its weight, or gather it first (DTensor.full_tensor)."
        ),
    ),
    # Ports, interfaces, firewalls
    Rule(
        "port-in-use",
        r"(?i)(?:port: (?P<port>\d+).*?)?(?:EADDRINUSE|address already in use)",
        says=marked("Another process listens on port {port}."),
        advice=marked(
            "Take MASTER_PORT from the environment instead of a fixed port, or end the process that listens "
            "there (ss -ltnp shows it)."
        ),
    ),
    Rule(
        "no-interface",
        r"Unable to find address for: *(?P<interface>[^\s\]]+)|(?:no|No) socket interface found",
        says=marked("There is no network interface {interface} with an address."),
        advice=marked(
            "Set GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME to one that `ip -br address` shows, or to nothing."
        ),
    ),
    Rule(
        "no-host",
        r"Name or service not known|Temporary failure in name resolution|nodename nor servname",
        says=marked("A name of a host cannot be resolved."),
        advice=marked("Check the name and the network. Data is best fetched once, before the ranks start."),
    ),
    Rule(
        "unreachable",
        r"client socket has (?:failed|timed out)[^\n]*?[\[(](?P<host>[^\]),]+)(?:\]:|, )(?P<port>\d+)"
        r"|No route to host",
        says=marked("Nothing answers at {host}, port {port}."),
        advice=marked(
            "Rank 0 has to run there, and a firewall has to let the port through; see MASTER_ADDR and "
            "MASTER_PORT."
        ),
        of_others=True,
    ),
    # Process groups
    Rule(
        "no-process-group",
        r"Default process group has not been initialized",
        advice=marked("Call torch.distributed.init_process_group() first, in every rank."),
        to_scripts=marked(
            "Call torch.distributed.init_process_group() first, in every rank. Where a library asks for it "
            "because torchrun's variables are there, start one process without them: rankdeck run --plain."
        ),
    ),
    Rule(
        "no-nccl",
        r"doesn't have NCCL built in|ProcessGroupNCCL is only supported with GPUs",
        says=marked("NCCL joins ranks on NVIDIA GPUs, and this process can use none."),
        advice=marked('Use the backend "gloo".'),
        to_scripts=marked(
            'Use the backend "gloo", or start one process without torchrun\'s variables: '
            "rankdeck run --plain."
        ),
    ),
    Rule(
        "no-launcher",
        r"environment variable (?P<name>\w+) expected, but not set",
        says=marked("Nothing has told the script which rank it is ({name})."),
        advice=marked("Start it with: rankdeck run --nproc-per-node N SCRIPT (without --plain)"),
    ),
    Rule(
        "unknown-rank-option",
        r"unrecognized arguments: [^\n]*--local[-_]rank",
        advice=marked("Read the rank from os.environ['LOCAL_RANK'] instead of --local-rank."),
    ),
    Rule(
        "one-process-only",
        r"in any distributed mode",
        says=marked("Hugging Face's accelerate took this process for a rank of torchrun's."),
        advice=marked("Start it as one process without torchrun's variables: rankdeck run --plain."),
    ),
    Rule(
        "one-rank-only",
        r"Using fsdp only works in distributed training",
        says=marked("The Hugging Face Trainer has one rank, and shards a model over several."),
        advice=marked("Start as many as there are GPUs: rankdeck run --nproc-per-node N SCRIPT"),
    ),
    Rule(
        "world-size-mismatch",
        r"You set `devices=\d+` and `num_nodes=\d+` in Lightning, but the product",
        says=marked("Lightning starts its ranks itself, and took this process for one of torchrun's."),
        advice=marked(
            "Let Rankdeck start them with --nproc-per-node, or start it without torchrun's variables: "
            "rankdeck run --plain."
        ),
    ),
    # GPUs
    Rule(
        "gpu-shared",
        r"Duplicate GPU detected",
        says=marked("Two ranks use the same GPU."),
        advice=_OWN_GPU,
    ),
    Rule(
        "no-such-gpu",
        r"invalid device ordinal",
        says=marked("It asks for a GPU that it does not see."),
        advice=_OWN_GPU,
    ),
    Rule(
        "device-assert",
        r"device-side assert triggered",
        says=marked(
            "An index was out of range on the GPU: most often a target beyond the classes, or a token "
            "beyond the "
            "vocabulary."
        ),
        advice=_RUN_BLOCKING,
    ),
    Rule(
        "gpu-fault",
        r"illegal memory access|misaligned address|illegal instruction was encountered"
        r"|unspecified launch failure",
        says=marked("A kernel on the GPU went wrong."),
        advice=_RUN_BLOCKING,
    ),
    Rule(
        "gpu-lost",
        r"fallen off the bus|GPU is lost|uncorrectable ECC error",
        says=marked("The GPU itself has failed."),
        advice=marked("Look at `dmesg` for Xid messages; it may need a reset or a restart of the machine."),
    ),
    Rule(
        "no-kernel-image",
        r"no kernel image is available for execution on the device",
        says=marked("This torch was not built for this GPU."),
        advice=marked("Install a torch whose CUDA knows it. Look the machine over with: rankdeck doctor"),
    ),
    Rule(
        "driver-too-old",
        r"driver (?:version is insufficient|on your system is too old)",
        says=marked("The driver is older than this torch needs."),
        advice=marked("Update the driver, or install a torch for an older CUDA."),
    ),
    Rule(
        "no-cuda",
        r"Found no NVIDIA driver|No CUDA GPUs are available|Torch not compiled with CUDA enabled",
        says=marked("This Python sees no GPU."),
        advice=_DOCTOR,
    ),
    Rule(
        "cuda-after-fork",
        r"Cannot re-initialize CUDA in forked subprocess",
        says=marked("A process that has used a GPU was forked, and its child cannot use one."),
        advice=marked("Keep tensors of data sets on the CPU, or start processes by spawn."),
    ),
    Rule(
        "devices-mixed",
        r"Expected all tensors to be on the same device"
        r"(?:.*?at least two devices, (?P<one>[\w:]+)(?: and |, )(?P<other>[\w:]+\w))?",
        says=marked("Tensors of {one} and {other} met in one operation."),
        advice=marked(
            "Make tensors on the device of the inputs (device=x.device), and hold constants as buffers of"
            " the model."
        ),
    ),
    # Shapes, kinds of numbers, ranges
    Rule(
        "labels-out-of-range",
        r"Target (?P<target>-?\d+) is out of bounds",
        says=marked("A target is {target}, and the model's output has no such class."),
        advice=marked("Give the model as many outputs as there are classes; they count from 0."),
    ),
    Rule(
        "index-out-of-range",
        r"index out of range in self",
        says=marked("An index, a token most often, lies beyond the rows of an embedding."),
        advice=marked("Make the vocabulary as large as the largest token, plus one."),
    ),
    Rule(
        "batch-of-one",
        r"Expected more than 1 value per channel when training",
        says=marked("A batch norm got a single sample, which has no variance."),
        advice=marked("Use a batch that leaves no device a single sample, or sync_batchnorm = true."),
        to_scripts=marked("Pass drop_last=True to the DataLoader, or use a larger batch."),
    ),
    Rule(
        "dtype-mismatch",
        r"expected scalar type \w+ but found \w+|same dtype, but got|must have the same dtype"
        r"|Found dtype \w+ but expected \w+"
        r"|Input type \(.*?\) and (?:weight|bias) type \(.*?\) should be the same"
        r"|\"[\w<>, ]+\" not implemented for '\w+'|can't be cast to the desired output type",
        says=marked("Numbers of different kinds met in one operation, or of a kind that it cannot take."),
        advice=marked("Let the data set return what the model takes, or cast in its forward."),
    ),
    Rule(
        "shape-mismatch",
        r"shapes cannot be multiplied|must match the size of tensor|(?:is|are) invalid for input of size"
        r"|input batch_size \(\d+\) to match target batch_size|expected input\[.*?\] to have \d+ channels"
        r"|Sizes of tensors must match|input\.size\(-1\) must be equal to input_size|normalized_shape="
        r"|(?:size|shape) mismatch, (?:got|m1)|weight of size \[.*?\], expected input|must be broadcastable",
        says=marked("Shapes do not fit together."),
        advice=marked(
            "Print the shapes on the line that the traceback names: it is the person's own, not torch's."
        ),
    ),
    # Autograd
    Rule(
        "modified-in-place",
        r"modified by an inplace operation",
        says=marked("A tensor that backward needs was changed after forward had used it."),
        advice=marked(
            "Write x = x + y instead of x += y there; torch.autograd.set_detect_anomaly(True) names it."
        ),
    ),
    Rule(
        "graph-freed",
        r"backward through the graph a second time",
        says=marked("backward ran twice over one forward, or a state is carried over steps."),
        advice=marked("Detach what is kept from step to step (state.detach()), and call backward once."),
    ),
    Rule(
        "no-graph",
        r"does not require grad and does not have a grad_fn",
        says=marked("The loss does not depend on any parameter that is trained."),
        advice=marked(
            "Look for detach(), .item(), no_grad() or frozen parameters between the model and the loss."
        ),
    ),
    Rule(
        "leaf-changed",
        r"a (?:view of a )?leaf Variable that requires grad",
        says=marked("A parameter was changed in place where gradients are recorded."),
        advice=marked("Change it under torch.no_grad()."),
    ),
    Rule(
        "not-scalar",
        r"grad can be implicitly created only for scalar outputs",
        says=marked("The loss has more than one number."),
        advice=marked("Return a sum or a mean of it."),
    ),
    Rule(
        "scaler-order",
        r"No inf checks were recorded|unscale_\(\) has already been called"
        r"|Attempting to unscale FP16 gradients",
        says=marked("The gradient scaler was used out of order, or on parameters that are fp16 themselves."),
        advice=marked(
            "scale(loss).backward(), unscale_ at most once, step, update; keep parameters in fp32."
        ),
    ),
    # Data
    Rule(
        "ragged-samples",
        r"stack expects each tensor to be equal size(?:, but got (?P<first>\[[^\]]*\]) at entry 0 and "
        r"(?P<other>\[[^\]]*\]) at entry (?P<entry>\d+))?"
        r"|each element in list of batch should be of equal size",
        says=marked("Samples of one batch differ in shape: {first} and {other}."),
        advice=marked(
            "Pad or cut them to one shape in the data set, or give it a read_batch(indices) that returns a "
            "whole batch, as a collate_fn does."
        ),
        to_scripts=marked("Pad or cut them to one shape in the data set, or pass a collate_fn."),
    ),
    Rule(
        "data-worker-died",
        r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) (?:exited unexpectedly|is killed by signal)",
        says=marked("A process that reads data for the rank died (pid {pids})."),
        advice=marked(
            "Memory may have run out: use fewer data.workers. With 0 the rank reads itself, and says why."
        ),
        to_scripts=marked(
            "Memory may have run out: use fewer workers. With num_workers=0 the rank reads itself, and "
            "says why."
        ),
    ),
    Rule(
        "data-too-slow",
        r"DataLoader timed out after (?P<seconds>\d+)",
        says=marked("No batch came for {seconds} s."),
        advice=marked("Look at what a sample takes to read, or raise the loader's timeout."),
    ),
    Rule(
        "data-worker",
        r"Caught (?P<error>\w+) in DataLoader worker process (?P<worker>\d+)",
        says=marked("Reading a sample raised {error}, in worker {worker} of the loader."),
        advice=marked("Mend the data set there, then start again; the whole traceback is in the rank's log."),
    ),
    Rule(
        "not-picklable",
        r"Can't (?:pickle|get local object)|[Cc]annot pickle ",
        says=marked("What goes to another process cannot be pickled."),
        advice=marked(
            "Define it at the top of a module: no lambda, no function inside a function, no open file."
        ),
    ),
    Rule(
        "no-main-guard",
        r"before the\s+current process has finished its bootstrapping phase",
        says=marked("The script starts processes while it is being imported by one of them."),
        advice=marked('Put what starts them below `if __name__ == "__main__":`.'),
    ),
    # Files of weights
    Rule(
        "checkpoint-mismatch",
        r"(?:Missing|Unexpected) key\(s\) in state_dict: [^\n]*\"module\.",
        types=("RuntimeError",),
        says=marked(
            'Names in the file begin with "module.", as a parallel wrapper saves them, and the model\'s '
            "do not; or the other way round."
        ),
        advice=marked("Save model.module.state_dict(), or take the prefix off before loading."),
    ),
    Rule(
        "checkpoint-mismatch",
        r"Error\(s\) in loading state_dict for \w+"
        r"|loaded state dict (?:has a different|contains a parameter)",
        says=marked("The file holds the weights or the optimizer of another model."),
        advice=marked("Build the model with the options that it was saved with."),
    ),
    Rule(
        "unreadable-weights",
        r"PytorchStreamReader failed|Weights only load failed|invalid load key|header too (?:large|small)"
        r"|Error while deserializing header",
        says=marked("The file of weights is cut off, damaged, or holds something else."),
        advice=marked("Take another copy of it, or an older checkpoint."),
    ),
    # Packages and files
    Rule(
        "no-module",
        r"No module named '(?P<name>[^']+)'",
        types=("ModuleNotFoundError",),
        says=marked("The Python that ran it has no {name}."),
        advice=marked("Install what provides it there, or correct the name."),
    ),
    Rule(
        "broken-install",
        r"undefined symbol|cannot open shared object file|version `[^']+' not found|DLL load failed",
        says=marked("A compiled package does not fit the Python, torch or system that it meets."),
        advice=marked("Install it anew for this torch. Look the machine over with: rankdeck doctor"),
    ),
    Rule(
        "compile-failed",
        r"backend='\w+' raised|No suitable C\+\+ compiler|InvalidCxxCompiler|C\+\+ compile error"
        r"|Inductor.*failed",
        says=marked("torch.compile could not compile the model."),
        advice=marked("Set train.compile = false; a C++ compiler is needed (g++)."),
        to_scripts=marked("Leave torch.compile out; a C++ compiler is needed (g++)."),
    ),
    Rule(
        "no-file",
        r"No such file or directory: '(?P<path>[^']+)'",
        types=("FileNotFoundError",),
        says=marked("{path} is not there."),
        advice=marked("Relative names are looked for in the folder in which it was started."),
    ),
    Rule(
        "no-permission",
        r"Permission denied: '(?P<path>[^']+)'",
        types=("PermissionError",),
        says=marked("{path} may not be read or written by this user."),
        advice=marked("Change its owner or its mode (ls -l shows both), or name another."),
    ),
    Rule(
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
        says=marked("Something could not be fetched from the network."),
        advice=marked("Fetch it once before the ranks start, so that they read it from the disk."),
    ),
    # What only other ranks can explain
    Rule(COMMUNICATION, types=("DistBackendError", "DistNetworkError", "DistStoreError"), of_others=True),
    Rule(
        COMMUNICATION,
        r"(?i)gloo/|\bgloo\b[^\n]*(?:timeout|closed|failed)|Connection closed by peer"
        r"|Timed out (?:waiting|after)"
        r"|NCCL (?:error|operation|communicator)|nccl\w*Error|Watchdog caught collective|wait timeout"
        r"|ProcessGroup(?:NCCL|Gloo)|TCPStore|c10d|recvValue failed|sendBytes failed|monitored ?barrier"
        r"|Rank \d+ successfully reached",
        types=("RuntimeError", ""),
        of_others=True,
    ),
)
