"""Where bytes live: the storage ledger, virtual devices, and torch's own statistics on GPUs.

Reading order: ledger (the book of storages), follower (how every operation reaches the book), watching
(whose storages a late sample adds), virtual (the devices of a rehearsal), sampling (which steps are
followed), torch_memory (real GPUs).
"""
