"""The Merkle model: what a checkpoint *is*.  Pure code: no files, no torch, no clock."""
