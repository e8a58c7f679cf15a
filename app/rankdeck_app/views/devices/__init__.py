"""The Devices tab: each GPU of a host, its problems, and the processes that hold its memory."""
