"""What a run would need, from the strategies themselves: they run on tensors without memory.

Reading order: fake_pass (one rank of one strategy, a few steps on fake tensors), planned_torch and cuda_like
(what torch does differently there), shape_memo (what torch need not be asked twice), plan_ledger (the
ledger that keeps a log), allocator (what CUDA's allocator makes of that log), targets (devices that are
planned for), rows (which strategies and options), work (how long a step may take), pool (questions answered
side by side, each in a process of its own), advice, and accuracy (predicted beside measured).
"""
