"""Other hosts over ssh: one pipe to each, which carries everything; copies of their runs, which today's
readers read.

Read wire.py first, then host_server.py (the far end) and link.py (the near one).
"""
