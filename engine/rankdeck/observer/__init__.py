"""What watches a person's own training script from inside its process, and never changes what it does.

`inject/` is put on PYTHONPATH by `rankdeck run`; its sitecustomize loads this folder under the private name
`_rankdeck_observer`, in whatever Python the script uses. So everything here is standard library only, in the
syntax of Python 3.9, and looks at torch only once the script has imported it.

    inject/sitecustomize.py    chains to the person's own, then arms
    imports.py, parts.py       run a part right after the module that it watches was imported
    session.py, writer.py      what is known of this process; its lines in the run's event files
    steps.py, losses.py, ...   the parts: each a function of (module, session)
    metrics.py, loggers.py     what scripts log, through loggers of theirs or log.py (`rankdeck.log`)
    memory.py                  what owners hold
    full_observation.py        a few steps followed by rankdeck's ledger (ledger_loader.py)

A part that fails is switched off, once, and named in `observed.parts`. Nothing here raises or prints.
"""
