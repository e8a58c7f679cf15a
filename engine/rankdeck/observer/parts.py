"""The parts, as data: after which module's import each one is run.

`(watched, part, file, function)`: once `watched` has been imported, `function(module, session)` of that file
here is called. What belongs to torch waits until torch is whole. A part may have several rows.
"""

PARTS = (
    ("torch", "steps", "steps", "install"),
    ("torch", "loss", "losses", "install"),
    ("torch._dynamo.trace_rules", "compiler", "steps", "leave_uncompiled"),
    ("torch", "model", "models", "install"),
    ("torch.amp.grad_scaler", "scaler", "scaler", "install"),
    ("torch.distributed.fsdp.sharded_grad_scaler", "scaler", "scaler", "install_sharded"),
    ("torch.utils.data.dataloader", "samples", "loaders", "install"),
    ("torch", "stacks", "stacks", "install"),
    ("torch.nn.parallel.distributed", "wrapper", "wrappers", "install_ddp"),
    ("torch.nn.parallel.data_parallel", "wrapper", "wrappers", "install_dp"),
    ("torch.distributed.fsdp", "wrapper", "wrappers", "install_fsdp"),
    ("torch.distributed._composable.fsdp", "wrapper", "wrappers", "install_fsdp"),
)
