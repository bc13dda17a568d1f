"""The command line: ``volta NAME ...`` or ``python -m volta NAME ...``; each command is a module in this folder."""
