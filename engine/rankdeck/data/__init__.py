"""Data sets, and the samplers that divide their samples into batches.

Start at base.py, then samplers.py (which rank gets which sample), then loader.py.
"""
