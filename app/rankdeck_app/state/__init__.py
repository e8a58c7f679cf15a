"""Models of the app's state: QtCore objects with signals and no widgets, tested without a window."""
