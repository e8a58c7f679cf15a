"""What no run's figures exceed: more is damage, and refused, since files of a run may come from anywhere. And
what plans and races may take, where nobody says otherwise. Imports nothing.
"""

MAX_RANKS = 1 << 16
MAX_STEP = 1 << 52
MAX_DURATION_S = 1e9
MAX_VALUE = 1e300
"""No figure of a script: sums of it leave the range of a double."""
ROW_TIMEOUT_S = 180.0
"""How long the planner may take for one row."""
RACE_STEPS = 25
"""How many each strategy of a race takes."""
