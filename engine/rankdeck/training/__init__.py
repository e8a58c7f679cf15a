"""One rank's work: what is trained, the loop, evaluation, reporting and saving."""
