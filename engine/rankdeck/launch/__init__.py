"""How a run is started, watched and ended.

    start.py           the command's side: devices, directory; what is refused is refused here
    guard_launcher.py     from a directory to a living guard; returns once the run is under it
    device_selection.py          from "auto", "gpu:0,2" or "cpu:4" to the devices of this run
    guard.py           holds the run's lock, reaps and sweeps everything below it, writes the last word
    control_server.py         how the guard is asked to stop, or to have a checkpoint saved
    supervisor.py      of every run: starts the ranks, watches them, names the cause when they fail, restarts
    rank_group.py      what a supervisor needs of its ranks, whose two kinds are made, and end, differently
    forked_ranks.py    a configuration's: forked once torch is imported, released once the data is there
    script_ranks.py    a person's own script's: executed, with their streams relayed and signals passed on
    race.py            strategies one after another, each as a run; the race holds their leases
    rank_process.py        a rank as a child: polled, signalled, ended by session
    rank_start.py      the first thing a configuration's rank does; it is forked early, released late
    torchrun.py        the environment that torchrun gives a rank
    streams.py         the streams that a command shares with its script; terminals and pipes of
                       ranks, relayed to logs and to the command
    store.py           the store where ranks meet
    watch.py           heartbeats in, suspicions out, evidence at the end
    script_watch.py    the same for a script, whose ranks may be processes that it has started itself
    stacks.py          asking ranks where they stand
    control.py         asking a run to stop, waiting for its end
    processes.py       processes by session and environment; ends what a killed guard left behind

Reading order: start, guard, supervisor, rank_group, forked_ranks, rank_start; then script_ranks. Only
forked_ranks.py and store.py import torch, each where it is needed first.
"""
