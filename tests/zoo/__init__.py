"""Models, losses, optimizers and data sets of many kinds, each under every strategy against a plain loop."""
