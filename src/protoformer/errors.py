"""The one exception a person can cause."""


class InputError(ValueError):
    """Bad input from outside: the message is one sentence that says what is wrong, where, and what to do.

    The command line prints the message and exits with code 2; the library raises it as it is.
    """
