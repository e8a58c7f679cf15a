"""List the devices and read their current use.

Read readings.py (the lines that a sampler writes) and registry.py (the state that results from them), then
provider.py with nvml.py and host.py (sources of readings), sampler.py (the process that takes the readings),
sampler_process.py (the watcher of that process), run_sink.py (a run's own events), listing.py (a single
listing of all GPUs) and gpu_status.py (which GPUs a run may use).
"""
