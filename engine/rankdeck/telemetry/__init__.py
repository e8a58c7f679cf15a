"""Readings of devices: what is there and what it is doing now.

Read readings.py (the lines that a sampler writes) and registry.py (what is true after them), then provider.py
with nvml.py and host.py (where readings come from), sampler.py and sampler_process.py (the process that asks,
and who watches it), run_sink.py (a run's own events), listing.py (all GPUs once) and gpu_status.py (which
of them a person may use).
"""
