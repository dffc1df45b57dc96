"""What this program offers to others over HTTP."""
