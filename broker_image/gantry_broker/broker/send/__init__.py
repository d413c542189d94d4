"""Sends: from a request to records of the log, and from the result to the answer."""
