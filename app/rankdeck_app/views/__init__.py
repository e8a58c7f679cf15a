"""The views that fill the frame. Each takes its state as arguments; packages of views do not import each
other."""
