"""What the benchmarks and the interoperability tests share: Java, processes, and the two systems under comparison."""
