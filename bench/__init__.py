"""Benchmarks: the README's figures, each a ratio or a cost measured in one run."""
