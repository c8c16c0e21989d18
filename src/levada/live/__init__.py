"""The live server: clock, store, event loop and service calls around the engine.

`store` has the durable state, `loop` runs the engine in turns, `executor` executes its commands, and `service` is the
interface for HTTP.
"""
