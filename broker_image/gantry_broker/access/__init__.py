"""Who sends a request, and may they do that: pure functions over a table of users and one table of request codes."""
