"""Cut any model into stages: find its units and their order, the cost of each unit, where to cut, and which
tensors cross a cut.

Start with one_forward_one_backward.py (what a schedule is). For how a model is cut, read chain.py (units and
stages), then cutting.py (where a model's units come from, and where to cut), equality.py (whether the units
give the same results as the model) and communication.py (messages between ranks outside the schedule).
"""
