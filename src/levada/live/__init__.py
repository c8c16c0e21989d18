"""The shell around the engine: clock, store, event loop, and what users can ask of it.

`store` keeps what must not be lost, `loop` feeds the engine and carries out its commands, `service` is what HTTP calls.
"""
