"""Use other hosts, each through one ssh pipe, and mirror their runs into local run directories.

Read wire.py first, then host_server.py (the remote end) and link.py (the local end).
"""
