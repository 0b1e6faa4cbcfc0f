"""The one exception that stands for a mistake the user can mend."""


class UserError(Exception):
    """One sentence on what was given, what was expected and what to do; the command line prints it and exits 2."""
