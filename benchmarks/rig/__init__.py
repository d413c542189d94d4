"""Shared parts of the benchmarks and the interoperability tests: Java, processes, and the compared systems."""
