"""The programs behind docs/figures.md, each a command: `python benchmarks/throughput.py`. They share `rig`."""
