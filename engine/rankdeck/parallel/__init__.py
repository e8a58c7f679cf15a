"""Movement of tensors and gradients between ranks: mesh, collectives, pipelining, tensor and fsdp."""
