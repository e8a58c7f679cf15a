"""How tensors and gradients move between ranks: the mesh, collectives, pipelining, tensor, fsdp."""
