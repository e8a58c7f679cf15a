"""From failures and oddities to one named cause and a fix. Nothing here imports torch.

exceptions.py     an exception in a rank -> a problem in words, by the rules of failure_rules.py
stacks.py         what faulthandler and torch's flight recorders say of each rank -> where it stands
hang.py           heartbeats, stacks and calls -> the rank that everybody waits for, and since when it hangs
script_hang.py    the same for a person's own script
cause.py          everything known of every rank at the end -> the one cause
out_of_memory.py  what a run that ran out of memory held, and which allocation tipped it
fixes.py          a problem and a configuration -> what to change
"""
