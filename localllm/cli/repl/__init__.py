"""The prompt that `localllm run NAME` keeps open: a conversation with commands."""
