"""End points of Gavel's interior-point solver (ECOS), except for rounding.

A linear program may have many optimal points. Gavel's results depend on the one where its solver stops; see
`docs/decisions` for why Levada reproduces it.
"""
