"""Cutting any model into stages: units in order, what each costs, where to cut, and what crosses a cut.

Start at one_forward_one_backward.py (what a schedule is). For the cutting: chain.py (what a unit and a stage
are), then find.py (where a model's units come from), equality.py (whether they compute what the model does),
cuts.py (where to cut) and communication.py (what a rank keeps of it all).
"""
