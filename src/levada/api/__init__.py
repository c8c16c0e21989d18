"""The JSON of the HTTP API, shared by the server, the client and the command line.

`types` declares every answer once. It is a separate module because on Python 3.11 it needs `typing_extensions`; the
client imports it only for type checkers.
"""

#: Phases of jobs that have ended.
ENDED = frozenset({"Succeeded", "Failed", "Cancelled"})
