"""A run's state on the disk: what is saved, how it is written whole, and how it is put back."""
