"""Linear layers split over ranks: the plan, its application, and sharded gradients."""
