"""What fills the frame: each view takes its state as arguments and imports no other view."""
