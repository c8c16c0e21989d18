"""Jobs as processes of this machine, one per worker, that outlive the server.

`shim` guards one worker; `processes` starts, finds and ends shims. Neither knows what a job is.
"""
