"""Scripts that are silently wrong and scripts that are right, and what Rankdeck reports about them.

    faults/       scripts with one fault each: a docstring, what must be reported, then the script
    healthy/      scripts without a fault, many of them unusual: nothing may be reported
    toy.py        their data, models and process groups
    cases.py      reads the scripts' headers
    trial.py      runs a script and judges what was reported
    page.py       the table, also in docs/findings.md

`make silent` (__main__.py) runs all of them, `make test` a few.
"""
