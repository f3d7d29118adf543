"""Tests of castore.log: entries, the fold, appending, revisions, names."""
