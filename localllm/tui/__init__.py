<<<<<<< HEAD
"""The terminal UI of `localllm chat`."""
=======
"""The terminal UI: `localllm chat`."""
>>>>>>> tui4
