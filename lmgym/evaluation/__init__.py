"""Evaluation: held-out accuracy with intervals, paired tests and a check for contamination."""
