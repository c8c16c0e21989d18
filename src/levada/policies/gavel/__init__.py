"""The Gavel family: policies that say which fraction of time each job should run on each GPU type.

Each module holds one policy that answers with `Shares`; `rounds` turns shares into decisions, and `published` does it
as Gavel's own scheduler did. Nothing here touches a clock, a file or a global generator.
"""
