"""What is said and drawn of recorded runs, kept word for word: a change of the house changes none of it.

`python -m tests.snapshots --write` keeps what is said now. The runs are those of tests/fixtures. Read said.py
next.
"""
