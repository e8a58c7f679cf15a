"""What acts for the person: launching, tabs of runs, alerts, fixes; between state and views."""
