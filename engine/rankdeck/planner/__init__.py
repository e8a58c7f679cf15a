"""Predict a run's memory and step time by running its strategy on fake tensors, which allocate no memory.

Reading order: samples and sample_reader (the batch to plan for), fake_pass (a few steps of one rank on fake
tensors), planning_mode, fake_values and value_answers (the differences from a real run), plan_ledger (the log
of allocations), allocator (the memory that CUDA's allocator reserves for that log), candidates (the
strategies, options and devices to plan), step_cost (an estimate of the step time), rank_plan (the plan line
of a candidate), pool (candidates planned in parallel, each rank in its own process), preload (imports before
forking), fixes (changes that make a plan fit), and accuracy (predictions compared with measurements).
"""
