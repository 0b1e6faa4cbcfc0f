"""Tools that a policy may call: a Python interpreter for untrusted code, and functions."""
