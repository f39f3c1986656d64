# Generated from _async/__init__.py by tools/generate.py. Do not edit.
"""The synchronous client. Made from the asynchronous one, see `tools/generate.py`."""
