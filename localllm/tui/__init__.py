"""The terminal UI of `localllm chat`."""
