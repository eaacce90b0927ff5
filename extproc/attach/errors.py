"""The one error of this room."""


class AttachError(Exception):
    """The file cannot be attached as it is; the message names the place and what to do by hand."""
