"""The table of everything that a person can make the app do, the keys that reach it, and when it applies."""
