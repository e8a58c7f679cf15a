"""A user's queue of runs on this machine: entries wait until enough devices are free, then start.

    entry.py        an entry of the queue: what to run, what it needs, and its starts so far
    needs.py        the devices that a selection such as "2" or "gpu:0,2" asks for
    spool.py        the folder of entries, changed under one lock by commands and by the dispatcher
    devices.py      the GPUs and CPU slots that runs may use, and why a device is not free
    admission.py    decides which entries start now, on which devices, and what the others wait for
    starts.py       starts an entry so that no start happens twice, whatever is killed
    dispatcher.py   the process that starts entries and records how their runs end

Read entry.py first. Nothing here imports torch: the dispatcher starts `rankdeck queue start`, which does.
"""
