"""Topics, groups, offsets and settings: the tables, their changes, and how they follow the log."""
