"""The views: the pages, side bars and panels of the window. Each receives its state as arguments; packages of
views do not import each other."""
