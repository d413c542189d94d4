"""All tests, one package: a file of shared code is imported by its whole name.

`from tests.support.free_ports import free_port`, `from tests.simulation.world import World`,
`from benchmarks.rig.target import Target`. pyproject.toml puts the repository's folder on the path of pytest; a command
runs as a module in that folder: `python -m tests.simulation.run --seed 4711`. No file changes `sys.path`.
"""
