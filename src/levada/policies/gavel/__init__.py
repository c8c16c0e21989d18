"""The Gavel family: policies that return shares of time per job and GPU type.

Each module has one policy, in up to three variants, that returns `Shares`. `rounds` turns shares into decisions;
`compat.gavel.published_rounds` does so like Gavel's own scheduler.
"""
