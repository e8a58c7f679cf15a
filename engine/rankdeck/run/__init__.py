"""What a run's events say, folded into figures: steps, devices, anatomy, problems; and their exports."""
