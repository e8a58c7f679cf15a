"""Track where memory is used: the storage ledger, virtual devices, and torch's own statistics on GPUs.

Reading order: entries and storages (live storages and their sums), scopes (the device and kind that a thread
sets for its new storages), ledger_mode (how every operation reaches them), watched_module (whose storages a
late sample adds), ledger (all of it), virtual (the devices of a rehearsal), batch_shapes (which batches were
tracked), torch_memory (real GPUs).

The ledger itself, and what it needs from torch_compat and base/memory_kinds.py, use relative imports among
themselves, and otherwise import only the standard library and torch: observer/full_observation.py loads them
under another package name in a user's process.
"""
