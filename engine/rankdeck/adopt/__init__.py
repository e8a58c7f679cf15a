"""From a run of a person's own script to a configuration of the same training.

    script_observation.py        what the run's events tell: ranks, wrapper, optimizer, batch, steps
    source.py      the script's text as a tree: names, imports, what an import of it would run
    tracing.py     from a name back to the call that made it, through assignments, wrappers and functions
    arguments.py   values that the text tells, those of argparse options included
    findings.py    model and data: which calls of the script make them
    losses.py      what backward is called on, and whether the catalogue has it
    options.py    seed, clipping, schedulers
    adopt.py    what the text tells that a configuration does not take over
    options.py     what was seen, in a configuration's words
    toml_writer.py     the lines of the file, with what is to be filled in
    adopt.py       all of it together

Nothing of the script is executed and torch is not imported. What neither the events nor the text tell is
written as "?" with a comment that says what the script does there, and where.
"""
