"""The engine's policy: which tokens run in which step, on which blocks of the KV pool."""
