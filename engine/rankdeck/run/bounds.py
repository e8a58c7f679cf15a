"""What no run's figures exceed: more is damage, and refused. Files of a run may come from anywhere."""

MOST_RANKS = 1 << 16
LARGEST_STEP = 1 << 52
LONGEST_S = 1e9
TOO_LARGE = 1e300
"""No figure of a script: sums of it leave the range of a double."""
