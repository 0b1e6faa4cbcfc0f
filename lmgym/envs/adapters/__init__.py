"""Environments of other packages as environments of lmgym; each needs an extra of the same name."""
