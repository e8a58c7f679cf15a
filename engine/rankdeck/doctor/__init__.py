"""Check whether this machine can train: one check for each thing that makes runs fail before they start.

Read lines.py (the output, one JSON line per row) and check_runner.py (the list of checks, which run in
parallel, each in a process that is killed at its time limit). The checks are in gpus.py, python.py,
rendezvous.py (two ranks that connect), network.py, disk_space.py and limits.py. probe_torch.py and
probe_rendezvous.py run in the project's interpreter. doctor_advice.py decides for which problems the doctor
is recommended. No check imports torch in this process, changes the machine or leaves a file.
"""
