"""The command line, one file per group of commands.

    app.py         the table of commands, and how any error becomes words and an exit code
    train.py       train, resume, checkpoint, verify: start a run or go on with it
    attach.py      watch, stop, stacks, label, copy: a run that is there already
    race.py        race: what fits, one strategy after another; race_display.py, race_tables.py
    results.py     runs, show, export
    catalog.py   strategies, presets, validate, adopt
    follow.py      reads a run's events until it has ended, for train and watch
    display.py     what is shown meanwhile: live.py on a terminal, plain lines in a pipe
    summary.py     results as a person reads them; formatting.py what it and the displays say alike
    console.py     stdout for results, stderr for the rest; problems in words or JSON

Nothing here imports torch, and each command imports what it needs when it is called: `rankdeck --help` stays
quick.
"""
