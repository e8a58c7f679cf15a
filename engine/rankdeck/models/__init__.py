"""Small ready models, their losses, and the wrapping of their blocks.

Each model's module has `build(**args) -> nn.Module`, the catalogue's lazy target. Start reading at base.py.
"""
