"""Speed against other libraries: the same prompts, the same number of tokens, one machine, taking turns."""
