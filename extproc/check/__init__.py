"""`forebay check`: what in an Envoy bootstrap, or in a policy alone, would bite, and what to write.

`check` is pure: parsed YAML in, findings out. `check_file` reads the file and the one of the
clients' keys, and asks the Envoy binary too, where there is one. The processor never imports this
room: it loads Envoy's message types.
"""

from extproc.check.findings import Finding, as_json, as_text
from extproc.check.run import Report, check, check_file

__all__ = ["Finding", "Report", "as_json", "as_text", "check", "check_file"]
