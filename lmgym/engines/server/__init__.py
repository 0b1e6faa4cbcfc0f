"""Rollouts on inference servers: an engine that sends requests over HTTP, and the servers it speaks to."""
