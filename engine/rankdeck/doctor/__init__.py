"""Whether this machine can train: one check for each thing that makes runs fail before they begin.

Read lines.py (what is told, one JSON line per row), looking.py (the list of checks, done side by side,
each with its time limit, in a process that can be ended). What a check looks at: gpus.py, python.py,
meeting.py (two ranks that meet), network.py, room.py and limits.py. probe_torch.py and
probe_meeting.py run in the interpreter of the project. offering.py says which problems it may explain.
Nothing here imports torch, changes the machine or leaves a file.
"""
