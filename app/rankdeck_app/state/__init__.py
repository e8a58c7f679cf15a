"""What the app knows, as QtCore objects with signals: no widgets, so each is tested without a window."""
