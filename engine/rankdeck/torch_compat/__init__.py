"""Parts of torch that the engine uses and that torch may change without notice, one module per subject.

    private_api        a private API: its path, the arguments that matter, the consequence of a change
    versions           known versions of torch, and the warning for users of an unknown version
    dispatch           modes below autograd, schemas of operations, storages as keys
    dtensors           this rank's local tensor of a DTensor
    modules            a module's own tables of weights, buffers and children
    weight_metadata    attributes and gradient hooks of a weight, for the Parameter that replaces it
    fake_tensors       tensors without memory, and a process group whose collectives finish at once
    shape_cache        cached results of operations on fake tensors, so that torch computes each only once
    sparse             numbers of elements of sparse fake tensors
    fake_mode_patches  changes to torch that let a strategy run on fake tensors
    attribute_patches  attributes that are replaced temporarily
    ledger_hooks       methods that are wrapped while the memory ledger tracks
    ddp                DistributedDataParallel's log, compression and reducer
    fsdp               weights without a gradient under fully_shard
    collectives        the kind, bytes and group of a collective, timeouts, and torch's flight recorder
    compiler           a delayed import of torch's compiler, for faster starts
    pipelining         torch's stages and schedules
    processes          CUDA initialized before a fork, workers of a DataLoader

Nothing here depends on the rest of the engine except `rankdeck.base`; no other package names a private part
of torch. Every module lists the APIs that it uses in PRIVATE_APIS, and a test checks each entry against the
installed torch. Results of whole test runs with other versions are in docs/torch.md.
"""
