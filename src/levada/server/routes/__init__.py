"""The routes, one file per resource."""
