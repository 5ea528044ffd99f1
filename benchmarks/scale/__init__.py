"""Tables too large to be made here: forged from a few real files, to see what grows and how."""
