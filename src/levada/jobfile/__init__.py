"""What users write: job and queue files, checked field by field before anything else happens.

The models are the contract (`levada schema job` prints them). A bad file gives one `Fault` per mistake, with the path
of the field. This package knows nothing of the engine and imports only `levada.errors`.
"""
