"""From failures and oddities to one named cause and a next step. Nothing here imports torch.

exceptions.py   an exception in a rank -> a problem in words; whether it is only about other ranks
hang.py         heartbeats and stacks -> the rank that everybody waits for
cause.py        everything known of every rank at the end -> the one cause
"""
