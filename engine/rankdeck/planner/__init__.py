"""Predict a run's memory and step time by running its strategy on fake tensors, which have no memory.

Reading order: samples and sample_reader (which batch is planned), fake_pass (one rank of one strategy, a few
steps on fake tensors), planning_mode, fake_values and value_answers (what differs from a run), plan_ledger
(the ledger that keeps a log), allocator (how much CUDA's allocator reserves for that log), candidates (which
strategies and options, for which devices), step_cost (an estimate of the step time), rank_plan (the plan line
of a candidate), pool (candidates planned in parallel, each rank in its own process), preload (what is
imported in advance), fixes (what to change if a plan does not fit), and accuracy (predictions compared with
measurements).
"""
