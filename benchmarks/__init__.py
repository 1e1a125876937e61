"""Measures the workloads of benchmarks/README.md on real processes, beside peers on the same machine."""
