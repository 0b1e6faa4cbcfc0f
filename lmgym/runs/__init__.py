"""Runs: a directory, its checkpoints, trackers, tables and plots."""
