"""The command `levada`: one file per group of verbs, each with `register(app)`.

Data goes to stdout, messages to stderr. Modules here import only the standard library and typer at the top; slow
imports (numpy, scipy, pydantic, rich) are inside the functions that need them.
"""
