"""Small built-in models, their losses, and activation checkpointing.

Each model's file has `build(**args) -> nn.Module`, imported by the catalogue on demand. Start at base.py.
"""
