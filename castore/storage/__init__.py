"""Bytes on a medium.  The only code that does file I/O; it knows names and bytes, nothing else."""
