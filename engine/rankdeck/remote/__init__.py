"""Use other hosts through one ssh pipe to each, and mirror their runs into local run directories.

Read wire.py first, then host_server.py (the remote end) and link.py (the local end).
"""
