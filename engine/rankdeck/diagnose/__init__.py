"""Find the one cause of a failure or anomaly, and a fix for it. Nothing here imports torch.

exceptions.py     translates an exception in a rank into a problem, by the rules of failure_rules.py
rank_evidence.py  lists the facts about one rank of a failed run
stacks.py         parses the output of faulthandler and torch's flight recorder, which show where ranks are
hang.py           finds, from heartbeats, stacks and collectives, the rank that all others wait for
script_hang.py    warns about a user's own script that hangs, and names the rank that the others wait for
mismatch.py       describes collectives that did not match, with the line of each side
cause.py          finds the one cause from everything known about the ranks when the run ended
out_of_memory.py  reports what was on the device when memory ran out, and which allocation failed
fixes.py          finds the changes to a configuration that solve a problem
"""
