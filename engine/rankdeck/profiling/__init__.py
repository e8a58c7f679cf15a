"""Timing of the phases inside a step: spans, their clocks, and the simulated pace of virtual devices."""
