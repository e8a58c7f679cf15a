"""Define the strategies: tensor placement, forward and backward pass, and gradient synchronization. README.md
gives the reading order."""
