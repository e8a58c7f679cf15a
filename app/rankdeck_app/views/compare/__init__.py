"""The comparison of runs: its tab and its side bar."""
