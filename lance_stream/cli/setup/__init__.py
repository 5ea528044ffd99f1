"""Commands for this machine: `doctor` with its `checks`, and `completion`."""
