"""The asynchronous half. The synchronous one in `_gen` is made from these files: change only here."""
