"""Models: a network with its tokenizer, and the exact log-probabilities of sequences under it."""
