"""A break of the engine, one line at a time, and which of them the tests see: `make mutants`."""
