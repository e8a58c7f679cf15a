"""From failures and oddities to one named cause and a next step. Nothing here imports torch.

failures.py     what the words of an error mean, by the rules of failure_rules.py
exceptions.py   an exception in a rank -> a problem in words; whether it is only about other ranks
stacks.py       what faulthandler writes of a rank -> where it stands
calls.py        torch's flight recorders -> who has not come to which collective, and whether all fit
patience.py     how long no progress is no hang yet
hang.py         heartbeats, stacks and calls -> the rank that everybody waits for
script_hang.py  the same for a person's own script
cause.py        everything known of every rank at the end -> the one cause
"""
