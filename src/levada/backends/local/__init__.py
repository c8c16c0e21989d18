"""Local backend: one process per worker, here and on agents; outlives the server.

    backend ── job controller (per job) ── machine ── supervisor (per machine) ── shim (per worker)

- `shim` is the parent of one worker; `processes` starts, inspects and ends shims. Neither knows jobs.
- `supervisor` runs the workers of one machine (`worker`) as `supervisor_protocol` commands.
- `job_controller` is the state machine of a job over all its machines: `worker_set` is what it observes, `job_reports`
  what it reports, `job_actions` what it does, `job_state` its record on disk, `members` and `environment` what it
  starts.
- `backend` connects them. `remote` is the server's end of another machine, `agents` registers those, `agent` runs
  there, and `agent_protocol` has their messages.
"""
