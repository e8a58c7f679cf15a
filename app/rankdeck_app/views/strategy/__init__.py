"""The page of a strategy: its description and a drawing of one step."""
