"""A fault soak: clients submit jobs while everything that can be killed, frozen or restarted is.

`python -m tests.soak --minutes 10 --seed 7` runs it for long; `test_soak.py` for a minute.
"""
