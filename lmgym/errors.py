"""The exception for mistakes that the user can correct."""


class UserError(Exception):
    """One sentence on what was given, what was expected and what to do; the command line prints it and exits 2."""
