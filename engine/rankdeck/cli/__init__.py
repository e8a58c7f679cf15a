"""Command line of Rankdeck, one file per group of commands.

    app.py         the table of commands, and how errors become messages and exit codes
    train.py       train, resume, checkpoint, verify
    attach.py      watch, stop, stacks, label, copy: commands for an existing run
    race.py        race; race_display.py and race_tables.py format its output
    results.py     runs, show, export
    catalog.py     strategies, presets, validate, adopt
    follow.py      reads a run's events until the run has ended, for train and watch
    display.py     progress output: live.py on a terminal, plain lines in a pipe
    summary.py     results as readable text; formatting.py formats values for summaries and displays
    console.py     stdout for results, stderr for everything else; problems as text or JSON

Nothing here imports torch, and each command imports the modules that it needs when it is called, so `rankdeck
--help` is fast.
"""
