"""The side bar where a run is configured: DEVICES, MODEL, STRATEGY, and the Launch button."""
