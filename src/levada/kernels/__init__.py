"""Hot loops over columns, in plain Python that `levada.jit` can compile.

Kernels take and return arrays and numbers. They have no access to names, objects or policies, and import only the table
layout and types of `core`. Interpreted and compiled kernels give the same bytes, so callers do not know which one runs.
To guarantee that, a kernel sums floats with `sums.total` (numpy adds in another order), uses `math` instead of numpy
functions, multiplies instead of using powers, sorts stably, and neither overflows nor divides by zero.
"""
