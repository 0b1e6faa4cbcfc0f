"""Policies: they turn a state into a prompt, ask an engine, and turn what was sampled into an action."""
