"""Movement of tensors and gradients between ranks: mesh, collectives, pipelining, tensor parallelism and
FSDP."""
