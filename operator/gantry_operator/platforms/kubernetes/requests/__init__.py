"""Requests of people in annotations of a cluster: what each says, without the API, and who carries it out."""
