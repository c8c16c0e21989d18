"""The HTTP API: who may do what, and how it is said on the wire.

`ports` names what stands behind it (`Service`, `Keys`); `app` puts the routes together; `run` serves them.
"""
