"""What both clients share. Nothing here waits for an answer, but for `io_async` and `io_sync`."""
