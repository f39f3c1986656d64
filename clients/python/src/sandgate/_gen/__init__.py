"""Generated code, see `tools/generate.py`."""
