"""What several tests share: waiting, running the command line, finding a test's processes."""
