"""How long a test waits for what must come: no test that passes does, so it only has to be longer than any machine stalls."""

WAIT_S = 180.0
