"""What goes wrong with files from outside."""


class BadFile(ValueError):
    """A file is cut short, damaged, mislabelled or not supported; the message says which, and what to do."""
