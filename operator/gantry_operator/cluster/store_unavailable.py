"""The error of a platform's files or objects, in a module of its own: the ports import much that commands need not."""


class StoreUnavailable(Exception):
    """The platform could not read or write something now. The text is the reason."""
