"""Rankdeck from Python: start a run, stay with it or leave it, and read it as arrays.

    runs.py    train, run and open_run, as `rankdeck` gives them
    races.py      race, and a race by its folder
    arguments.py   what they are given, and errors that speak of it
    run_object.py  Run: what a run is to the one who started or opened it
    run_arrays.py     a run's events as numpy columns, read on from where they were
    html.py        a run as a small table, and its progress in a terminal, in a notebook or as lines

Every run has processes of its own: nothing trains in the caller's, and torch is not imported there.
"""
