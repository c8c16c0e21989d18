"""DRAGON: gangs with parameter servers, placed by node; serving pods come first."""
