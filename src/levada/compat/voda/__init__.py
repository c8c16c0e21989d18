"""Voda's HTTP routes: its command line and scripts work with a Levada server."""
