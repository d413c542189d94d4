"""Topics as tables: which are due, and what a run means for the status. Pure."""
