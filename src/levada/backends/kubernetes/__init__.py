"""Kubernetes backend: jobs as objects of a cluster.

Operators size them, Levada places their pods.

backend      `KubernetesBackend`, which implements the protocol
observer     connects the parts below: caches, changes, steps
client       the narrow API of a cluster; `connection` implements it, tests have another one
informer     watches that keep a `cache` current; `watches` has all of them; `objects` are the fields that are read
registry     jobs and their objects; `adoption` says which objects belong to Levada
reconciler   what to do next for one job, with `job_writer` and `job_acks`
seats        what to do with the pods of a job; `ordinals` numbers them
stamp        the last operation, in the annotations of an object; `owned_job` is the rest of a job's state
kinds        one adapter per kind of job
inventory    nodes and foreign use, from `nodes`, `eligibility` and `resources`
fence        which server may write
face         events and annotations for users
work         keyed work queue, expectations
"""
