"""How a run is started, watched and ended.

    start.py           the command's side: devices, directory, guard; returns once the run is under guard
    choose.py          from "auto", "gpu:0,2" or "cpu:4" to the devices of this run
    guard.py           holds the run's lock, reaps and sweeps everything below it, writes the last word
    callers.py         how the guard is asked to stop, or to have a checkpoint saved
    supervisor.py      prepares data, starts the ranks, watches them, names the cause when one fails
    agent.py           torch's elastic agent over our ranks; a rendezvous that listens on loopback only
    rank_processes.py  ranks as processes: forked early, released late, ended by session
    rank_start.py      the first thing a rank does
    control.py         asking a run to stop, waiting for its end
    processes.py       processes by session and environment; ends what a killed guard left behind

Reading order: start, guard, supervisor, rank_processes. Only supervisor.py and agent.py import torch.
"""
