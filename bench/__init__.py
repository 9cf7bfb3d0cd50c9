"""Benchmarks of Oars against what users of the engines have today, both measured in one run."""
