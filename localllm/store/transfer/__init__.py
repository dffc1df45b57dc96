"""Bytes from a server to a file: in ranges, verified, resumable, shared between processes."""
