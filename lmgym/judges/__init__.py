"""Judges: language models that score steps, episodes or the episodes of a group, in batches."""
