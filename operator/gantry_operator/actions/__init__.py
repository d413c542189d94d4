"""What a person does with a cluster, below the command `gantry` and the console: each of them only presents it.

An action gets its cluster as a `target.Target`, and raises `errors.ActionError` with one plain sentence.
"""
