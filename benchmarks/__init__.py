"""Commands that measure the figures of docs/figures.md: `python benchmarks/throughput.py`. They share `rig`."""
