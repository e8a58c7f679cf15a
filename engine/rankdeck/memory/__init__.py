"""Where bytes live: the storage ledger, virtual devices, and torch's own statistics on GPUs.

Reading order: entries and storages (live storages and their sums), scopes (what a thread says of those that
it makes), follower (how every operation reaches them), watching (whose storages a late sample adds), ledger
(all of it), virtual (the devices of a rehearsal), sampling and batch_shapes (which steps are followed),
torch_memory (real GPUs).
"""
