"""The run tab: a strip of metrics and a card for each chart."""
