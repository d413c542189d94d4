"""The HTTP interface of one broker: its routes, and what they tell of the broker."""
