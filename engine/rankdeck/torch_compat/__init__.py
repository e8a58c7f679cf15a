"""What the engine uses of torch that torch's makers may move without a word, one module per subject.

    places         what a place is: its path, the arguments that count, what goes wrong without it
    versions       versions that are known, and the warning for a person on another one
    dispatch       modes below autograd, schemas of operations, storages as keys
    dtensors       the part of a DTensor that this rank holds
    modules        a module's own tables of weights, buffers and children
    marks          attributes and gradient hooks of a weight, for the Parameter that takes its place
    fake_tensors   tensors without memory, and a process group whose collectives are done at once
    shape_memo     operations on fake tensors that torch need not be asked twice
    sparse         how many elements sparse tensors without memory have
    planned        what torch does differently where a strategy runs on fake tensors
    replaced       attributes that are exchanged for a while
    ledger_hooks   methods that are wrapped while the memory ledger follows
    ddp            DistributedDataParallel's log, compression and reducer
    fsdp           weights without a gradient under fully_shard
    collectives    collectives as operations, their groups, how long they wait, and the last recorded ones
    pipelining     torch's stages and schedules
    processes      CUDA before a fork, workers of a DataLoader

Nothing here knows the rest of the engine; nothing else in it names a private part of torch. Every module
lists in PRIVATE_APIS what it touches, and a test holds each of these against the torch that is installed.
Results of whole test runs under other versions are in docs/torch.md.
"""
