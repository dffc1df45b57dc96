"""Conversations that are kept: a tree of messages each, in one SQLite file with full-text search.

Nothing here knows of a terminal.
"""
