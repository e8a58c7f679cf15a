"""Linear layers split over ranks: the plan, what carries it out, and gradients that lie in parts."""
