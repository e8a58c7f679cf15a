"""Compare runs side by side: their metrics, which run is best in each metric, and how the runs differ.

    run_ref.py       RUN and RUN@ATTEMPT: the text that the user types, and the run it refers to
    run_setup.py     a run's files other than its events: configuration, versions, prediction
    run_metrics.py   one column: a run's metrics, built from its state and setup or from its directory
    table.py         columns side by side: the rows, the best values, and why a row has no best value
    differences.py   keys in which configurations differ, and which runs may be ranked at all
    curves.py        losses over steps, time and samples
    formatting.py    metrics and differences as text
    bar_charts.py    bar charts, and the dash patterns, axis ticks and label positions of all charts
    json_output.py   a comparison as JSON values
    page.py          a comparison, or one run, as one self-contained page
    run_report.py    results of a run, and fixes to try next

The app shows the same comparison as the command line: it builds run states from live events, and passes them
to run_metrics.py. Nothing is imported here, so that resolving run names does not need numpy.
"""
