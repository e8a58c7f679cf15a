"""A run's state on disk: what a checkpoint contains, how it is written atomically, and how it is restored."""
