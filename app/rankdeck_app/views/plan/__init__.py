"""The memory plan of the configured run, strategy by strategy."""
