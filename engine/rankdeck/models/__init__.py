"""Small built-in models, their losses, and activation checkpointing.

Each model's file defines `build(**args) -> nn.Module`; the catalogue imports the file on demand. Start at
base.py.
"""
