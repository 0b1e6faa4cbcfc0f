"""Speed of lmgym and of other libraries on the same prompts, the same number of tokens and the same machine."""
