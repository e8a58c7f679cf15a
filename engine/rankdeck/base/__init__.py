"""What everything stands on: errors that advise, units, where files of the app live, leases, heartbeats."""
