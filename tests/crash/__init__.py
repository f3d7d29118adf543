"""Crashes of the machine and of the process, made one by one from what the real code does."""
