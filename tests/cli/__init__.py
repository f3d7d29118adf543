"""The command line, end to end: real processes on real stores, through pipes and terminals."""
