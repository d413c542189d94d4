"""HTTP servers of all processes: limits of connections, the token, pages of metrics, the command before a stop."""
