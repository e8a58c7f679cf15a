"""The side bar where a run is configured: DEVICES, STRATEGY, MODEL, and the Launch button."""
