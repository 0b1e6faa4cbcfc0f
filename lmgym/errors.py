"""The exceptions that are answered with a sentence and not with a traceback."""


class UserError(Exception):
    """One sentence on what was given, what was expected and what to do; the command line prints it and exits 2."""


class InterruptedRunError(UserError):
    """Something that a run needs is gone; what it has learnt is saved, and it can be resumed."""
