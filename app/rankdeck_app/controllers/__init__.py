"""Controllers: launching, run tabs, alerts and fixes; they sit between state and views."""
