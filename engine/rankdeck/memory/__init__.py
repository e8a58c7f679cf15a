"""Track where memory is used: the storage ledger, virtual devices, and torch's own statistics on GPUs.

Reading order: entries and storages (live storages and their sums), scopes (the device and kind that a thread
sets for its new storages), ledger_mode (how every operation reaches the ledger), watched_module (the module
whose storages are added when tracking starts late), ledger (all of these together), virtual (the devices of a
rehearsal), batch_shapes (which batches were tracked), torch_memory (real GPUs).

The ledger, and the parts of torch_compat and base/memory_kinds.py that it needs, import each other relatively
and, apart from that, only the standard library and torch: observer/full_observation.py loads them under
another package name in a user's process.
"""
