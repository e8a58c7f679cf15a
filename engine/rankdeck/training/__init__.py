"""One rank's work: the workload, the training loop, evaluation, reporting and saving."""
