"""Python API of Rankdeck: start a run, wait for it or detach, and read its results as arrays.

    runs.py        train, run and open_run, the counterparts of the `rankdeck` commands
    races.py       race, and an object that reads a race from its directory
    arguments.py   argument checks, and errors worded for Python callers
    run_object.py  Run: a run that was started or opened from Python
    run_arrays.py  a run's events as numpy columns, read incrementally
    html.py        a run as an HTML table, and its progress in a terminal, in a notebook or as plain lines

Every run has its own processes: the caller's process neither trains nor imports torch.
"""
