"""The tab of the GPUs of this machine: each of them, their trouble, and who holds their memory."""
