"""Data sets and the samplers that cut them into batches.

Start at base.py, then samplers.py (which rank gets which sample), then loader.py.
"""
