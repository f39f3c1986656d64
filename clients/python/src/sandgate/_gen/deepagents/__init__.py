# Generated from deepagents/_async/__init__.py by tools/generate.py. Do not edit.
"""The synchronous half of the backend. Made from the asynchronous one, see `tools/generate.py`."""
