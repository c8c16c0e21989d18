"""Where jobs really run: each backend does what the engine's operations ask, and reports what it sees."""
