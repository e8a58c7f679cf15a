"""The plan of the run being configured, strategy by strategy."""
