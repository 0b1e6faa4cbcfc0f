"""Engines: token ids in; sampled ids, their log-probabilities and the policy version out."""
