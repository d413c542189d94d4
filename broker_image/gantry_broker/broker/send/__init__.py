"""Sends: from a request to records of the log, and from the outcome to the answer."""
