"""Several processes of one run: who they are, and what they exchange."""
