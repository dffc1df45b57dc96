"""What requests may hold: tables of fields, and how their values are read."""
