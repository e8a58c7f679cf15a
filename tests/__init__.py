"""The tests, as a package: another one of this name among installed packages does not come first."""
