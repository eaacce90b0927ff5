"""`forebay attach`: writes what Forebay needs into an existing Envoy bootstrap.

A pure function from text to text. What is added is cut out of the reference config's own text,
comments included; every line of the user's that need not change stays as it is, byte for byte.

`tree` knows where in a text each node stands, `source` cuts pieces out of one, `draft` puts pieces
into another, `bootstrap` reads what an Envoy config says, `steps` are the changes, in order.
"""

from extproc.attach.errors import AttachError
from extproc.attach.run import Attached, Options, attach, unified_diff

__all__ = ["AttachError", "Attached", "Options", "attach", "unified_diff"]
