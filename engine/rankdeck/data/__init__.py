"""Real data sets and how they are cut into batches.

Start at base.py, then samplers.py (who gets which sample), then loader.py.
"""
