"""What several views share: charts, plots, cards, forms and lists. Read chart.py first."""
