"""The table of all commands, their keys, and the conditions under which they apply."""
