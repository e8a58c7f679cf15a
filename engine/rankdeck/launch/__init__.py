"""Start a run, watch it and end it.

    start.py              starts runs: checks the request, chooses devices, creates the run directory
    guard_launcher.py     starts the guard; returns once the guard holds the run's lock
    device_selection.py   resolves "auto", "gpu:0,2" or "cpu:4" to the run's devices
    guard.py              holds the run's lock, reaps its processes, writes the exit record
    control_server.py     takes stop and checkpoint requests for the guard
    supervisor.py         starts, watches and restarts the ranks, finds the cause of a failure
    rank_group.py         the interface of an attempt's ranks, with two implementations
    forked_ranks.py       forks the ranks of a configuration once torch is imported, releases them later
    script_ranks.py       executes the ranks of a user's script, relays streams, forwards signals
    race.py               runs strategies one after another on the devices that it leases
    rank_process.py       polls and signals a rank, ends it with its whole session
    rank_start.py         the first code that runs in a configuration's rank
    torchrun.py           the environment variables that torchrun sets for a rank
    streams.py            relays the ranks' terminals and pipes to logs and to the command
    store.py              the store through which the ranks rendezvous
    watch.py              reads heartbeats, detects hangs, collects evidence
    script_watch.py       watches the ranks of a script, which may start ranks itself
    stacks.py             asks ranks for their stacks
    control.py            asks a run to stop, waits for its end
    processes.py          finds processes by session and environment, kills leftovers

Reading order: start, guard, supervisor, rank_group, forked_ranks, rank_start; then script_ranks. Only
forked_ranks.py and store.py import torch, each at first use.
"""
