"""What a run's events say: the one fold of them into steps, devices, anatomy, problems; and its exports."""
