"""The command `levada`: one file per group of verbs, each with `register(app)`.

Data goes to stdout, chatter to stderr. Modules here import only the standard library and typer at the top; whatever
takes time to import (numpy, scipy, pydantic, rich and the like) is imported inside the function that needs it.
"""
