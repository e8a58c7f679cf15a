"""The side bar that configures a run: DEVICES, STRATEGY, MODEL, and the Launch button."""
