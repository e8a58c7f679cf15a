"""Basics for all other packages: errors with advice, units, the app's folders, GPU leases, heartbeats."""
