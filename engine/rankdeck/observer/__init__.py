"""Observes a user's training script from inside its process, without changing what the script does.

`rankdeck run` puts `inject/` on PYTHONPATH. Its sitecustomize loads this folder under the private name
`_rankdeck_observer`, in whatever Python the script uses. So the code here uses only the standard library and
the syntax of Python 3.9, and touches torch only after the script has imported it.

    inject/sitecustomize.py    runs the user's own sitecustomize, and installs the observer
    imports.py, parts.py       run a part right after the import of the module that the part observes
    session.py, writer.py      the state of this process; the lines that it writes to the run's event files
    early_stacks.py            the stacks of any process that is not a rank yet
    steps.py, losses.py, ...   the parts: each is a function of (module, session)
    metrics.py, loggers.py     values that scripts log, with logging libraries or log.py (`rankdeck.log`)
    memory.py                  memory by owner
    full_observation.py        a few steps tracked by rankdeck's memory ledger (ledger_loader.py)

A part that fails is disabled for good and named in `observed.parts`. Nothing here raises or prints.
"""
