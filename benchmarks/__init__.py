"""Benchmarks: each compares within one run and prints one JSON object. `python -m benchmarks [NAME ...]` runs them."""
