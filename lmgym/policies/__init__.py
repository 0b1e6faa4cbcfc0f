"""Policies: they turn a state into a prompt, sample from an engine, and turn the sampled tokens into an action."""
