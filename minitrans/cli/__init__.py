"""The commands: one pass over the command line, composition, help, and a main for each."""
