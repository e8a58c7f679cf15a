"""Widgets that several views share: charts, plots, cards, forms and lists. Start with chart.py."""
