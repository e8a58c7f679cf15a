"""Small ready models. Each module has `build(**args) -> nn.Module`, the catalogue's lazy target; start
reading at base.py.
"""
