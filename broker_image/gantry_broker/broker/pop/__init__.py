"""POP consumption: the broker hands messages to any member of a group, for a time.

A popped message is invisible to others until it is acknowledged or its time is over. `state.py` is the state machine of
that (pure), `records.py` its records in the log, `service.py` the edge.
"""
