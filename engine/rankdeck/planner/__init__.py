"""What a run would need, from the strategies themselves: they run on tensors without memory.

Reading order: samples and look (which batch is planned), fake_pass (one rank of one strategy, a few steps on
fake tensors), planned_torch, values and questions (what is different there), plan_ledger (the ledger that
keeps a log), allocator (what CUDA's allocator makes of that log), candidates (which strategies and options,
for which devices), work (how long a step may take), figures (the line of a candidate), pool (candidates
planned side by side, each rank in a process of its own), preload (what is imported before), fixes
(what to change where a plan does not fit), and accuracy (predicted beside measured).
"""
