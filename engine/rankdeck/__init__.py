"""Trains under every parallel strategy, plans a run's memory and tells what every device does during it.

Users import `rankdeck.config`, `rankdeck.events`, `rankdeck.rundir` and `rankdeck.models`. Nothing is
imported here, so that none of them pays for another (torch above all).
"""

__version__ = "0.2.0"
