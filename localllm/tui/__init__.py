"""The terminal UI: `localllm chat`."""
