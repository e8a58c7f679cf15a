"""The race page: how fast each strategy is, what it needs, and whether the losses agree."""
