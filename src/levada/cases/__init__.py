"""One decision as a pure function: a case in, the answer of one policy out. What `levada allocate` prints.

`standard` takes the case of the documentation, `dragon` the cases that describe pods and nodes as DRAGON saw them.
Neither reads files.
"""
