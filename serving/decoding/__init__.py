"""Pictures of strangers are decoded in child processes, which may crash, hang or run out of memory on their own."""
