"""Controllers, the layer between state and views: launching, run tabs, alerts and fixes."""
