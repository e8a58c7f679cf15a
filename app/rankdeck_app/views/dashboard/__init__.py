"""The tab of a run: its figures in a strip and a card for each chart."""
