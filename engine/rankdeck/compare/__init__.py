"""Runs side by side: what each one's figures are, which is the best of them, and in what the runs differ.

    run_ref.py       RUN and RUN@ATTEMPT: what a person types, and which run it is
    run_setup.py   what a run's files say besides its events: configuration, versions, prediction
    run_metrics.py      a fold and a background, or a run's directory, as one column of plain figures
    table.py        columns beside each other: the rows, which is best, and why none is where none is
    differences.py  the keys in which configurations differ, and which runs may be ranked at all
    curves.py       losses over steps, time and samples
    formatting.py        a figure and a difference as a person reads them
    bar_charts.py         memory by device and a few figures as bars; dashes, round numbers, places of labels
    json_output.py      a comparison as JSON values
    page.py         a comparison, or one run, as one page that asks nobody for anything
    run_report.py     what a run came to, and what to try next

The command line and the app show the same: the app folds events as they come and begins at run_metrics.py.
Nothing is imported here: who only names runs needs no numpy.
"""
