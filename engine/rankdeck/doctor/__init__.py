"""Whether this machine can train: one check for each thing that makes runs fail before they begin.

Read lines.py (what is told, one JSON line per row), check_runner.py (the list of checks, done side by side,
each with its time limit, in a process that can be ended). What a check looks at: gpus.py, python.py,
rendezvous.py (two ranks that meet), network.py, disk_space.py and limits.py. probe_torch.py and
probe_rendezvous.py run in the interpreter of the project. doctor_advice.py says which problems it may
explain. Nothing here imports torch, changes the machine or leaves a file.
"""
