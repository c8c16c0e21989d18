"""Job and queue files, checked field by field.

The models are the contract (`levada schema job` prints them). A bad file gives one `Fault` per mistake, with the path
of the field. This package does not depend on the engine; it imports only `levada.errors` and `levada.sdk`.
"""
