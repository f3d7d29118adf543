"""Packs: immutable files of many chunks or objects, with a table of contents; and their index."""
