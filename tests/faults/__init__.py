"""Faults that are really made in real runs, and whether what is told of them is right.

    inside/       the code of a job that fails: a configuration's and a script's
    jobs.py       classes of jobs: every strategy, and people's own scripts
    kinds.py      what may go wrong, where, and what must be told
    outside.py    what is done to a run from outside
    trial.py      one trial, and the judge
    healthy.py    runs of which nothing may be told
    storms.py     runs that are killed again and again
    record.py     what is done so far
    page.py       docs/reliability.md, from the record

`make test` runs a few of each, `make faults` and `make storms` (__main__.py) all of them.
"""
