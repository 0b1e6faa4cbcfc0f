"""Environments of lmgym in other libraries: as tasks of lm-eval, and as rewards and environments of TRL."""
