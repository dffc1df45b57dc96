"""One file for each family of routes; `localllm.server.app` puts them together."""
