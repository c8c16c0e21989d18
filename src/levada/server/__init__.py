"""The HTTP API: routes, authentication, metrics, and start and stop of a server.

`interfaces` declares what the routes need (`ServiceInterface`, `Keys`); `app` assembles them; `run` serves them.
"""
