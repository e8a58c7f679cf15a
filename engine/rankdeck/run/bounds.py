"""Define limits for the values in a run's files; values above them indicate damage and are rejected.

Files of a run may come from any source. The module also defines the defaults of plans and races. It imports
nothing.
"""

MAX_RANKS = 1 << 16
# Steps are stored as doubles, which hold integers up to 2**53 exactly.
MAX_STEP = 1 << 52
MAX_DURATION_S = 1e9
MAX_VALUE = 1e300
"""Limit for the values that a script reports, so that sums of them fit into a double."""
ROW_TIMEOUT_S = 180.0
"""The planner's time limit for each row of a plan."""
RACE_STEPS = 25
"""Default number of steps that each strategy of a race trains."""
