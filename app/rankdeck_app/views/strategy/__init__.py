"""A strategy in words, and one step of it drawn."""
