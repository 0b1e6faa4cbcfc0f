"""Benchmarks: speed beside other libraries, learning curves, and the scripts that measured them. Not installed."""
