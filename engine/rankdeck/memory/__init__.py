"""Where bytes live: the storage ledger, virtual devices, and torch's own statistics on GPUs.

Reading order: entries and storages (live storages and their sums), scopes (what a thread says of those that
it makes), follower (how every operation reaches them), watching (whose storages a late sample adds), ledger
(all of it), virtual (the devices of a rehearsal), batch_shapes (which batches were followed), torch_memory
(real GPUs).

The ledger itself, what it needs of torch_compat and base/memory_kinds.py import each other relatively, and
nothing but the standard library and torch: observer/full_observation.py loads them under a name of its own in
a person's process.
"""
