"""Jobs as processes of this machine and of others that joined, one per worker, that outlive the server.

    backend ── gang (of a job: what an operation means) ── hosts ── supervisor (of a machine) ── shim (of a worker)

`shim` guards one worker; `processes` starts, finds and ends shims; neither knows what a job is. `supervisor` starts,
watches and ends the workers of one machine as `messages` tell it. `gang` is the state machine of a job over all its
machines (`crew` looks, `record` is what it keeps, `roster` and `environment` say what is started). `backend` joins
them. Another machine's supervisor is behind `remote` (`agents` takes them in, `agent` runs there, `wire` is what they
say to each other).
"""
