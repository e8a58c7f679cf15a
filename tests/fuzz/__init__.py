"""Runs that come from anywhere: whatever is in their folders, readers and commands answer in words.

    seeds.py      runs as the engine wrote them
    values.py     JSON that fits a type and makes no sense, JSON that fits nothing
    damage.py     what is done to a run's files and folders, as data that a failure prints
    watching.py   seconds, bytes, and what lies outside of a run
    readers.py    whoever reads a run, in this process
    commands.py   `rankdeck COMMAND` in a process of its own

`make test` runs a few examples, `make fuzz` (__main__.py) very many.
"""
