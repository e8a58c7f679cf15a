"""The race page: the speed of each strategy, the memory that it needs, and whether the losses agree."""
