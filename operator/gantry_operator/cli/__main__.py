"""`python -m gantry_operator.cli` is the same as `gantry`."""

from gantry_operator.cli import main

main()
