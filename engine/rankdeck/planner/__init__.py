"""What a run would need, from the strategies themselves: they run on tensors without memory.

Reading order: growth, samples, look and planned_data (which batch is planned), fake_pass (one rank of one
strategy, a few steps on fake tensors), planned_torch, values, questions and cuda_like (what is different
there), plan_ledger (the ledger that keeps a log), allocator (what CUDA's allocator makes of that log),
targets (devices that are planned for), candidates (which strategies and options), work and step_time (how
long a step may take), figures (the line of a candidate) and not_followed (why there is none), pool
(candidates planned side by side, each rank in a process of its own), preload (what is imported before),
advice, fixes (where nothing fits), and accuracy (predicted beside measured).
"""
