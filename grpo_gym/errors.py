"""Errors that are the user's to mend."""


class UsageError(ValueError):
    """A mistake in what the user gave: an option, a file, a model, an environment.

    The message is one line that says what is wrong, where, and what to do. The command line prints it
    without a traceback and exits with status 2; from Python it is an ordinary exception.
    """
