"""What acts for the person: launching, tabs of runs, alerts, remedies; between state and views."""
