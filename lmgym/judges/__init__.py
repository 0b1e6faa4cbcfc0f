"""Judges: language models and trained classifiers that score steps, episodes or the episodes of a group."""
