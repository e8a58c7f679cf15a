"""The page of a race: who is how fast, what each needed, and whether losses agree."""
