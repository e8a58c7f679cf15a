"""Small built-in models, their losses, and activation checkpointing.

Each model's module has `build(**args) -> nn.Module`, the catalogue's lazy target. Start reading at base.py.
"""
