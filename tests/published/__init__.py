"""The planner held to figures that others published: rows.toml, table.py, page.py.

`python -m tests.published` plans them all.
"""
