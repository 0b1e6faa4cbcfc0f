"""Algorithms: one short file each, over the loop in rl_algorithm.py and the pure functions beside this folder."""
