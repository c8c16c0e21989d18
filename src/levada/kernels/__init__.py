"""The hot loops on columns, each written once: plain Python that `levada.jit` can replace by machine code.

Kernels take and give arrays and numbers. They know no names, no objects, no policy, and import nothing of ours but the
layout of the table. Interpreted and compiled they give the same bytes, so callers never ask which of the two runs. For
that a kernel sums floats with `sums.total` (numpy adds in another order), takes functions of `math` instead of numpy's,
multiplies instead of raising to a power, sorts stably, and neither overflows nor divides by zero.
"""
