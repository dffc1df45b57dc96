"""Stand-ins for what the command line talks to: models, a package index, a session."""
