"""Turns a run of a user's script into a configuration for the same training.

    script_observation.py    what the run's events report: ranks, wrapper, optimizer, batch, steps
    source.py                the script as a syntax tree: names, imports, side effects of importing it
    tracing.py               the call that created a name's value, traced through assignments and wrappers
    arguments.py             values of expressions, including argparse options
    findings.py              model and data: the calls in the script that create them
    losses.py                the loss on which backward() is called, and its catalog name
    options.py               strategy, devices, optimizer, schedule, seed, clipping
    naming.py                references to the script's functions and classes, with arguments
    toml_writer.py           the lines of the file, with placeholders
    adopt.py                 the whole configuration, and a list of the features that it does not cover

The script is not executed and torch is not imported. A value that appears neither in the events nor in the
script is written as "?", with a comment that describes what the script does and names the line.
"""
