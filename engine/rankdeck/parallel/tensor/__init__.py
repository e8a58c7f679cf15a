"""Linear layers split across ranks: the plan, its application, and sharded gradients."""
