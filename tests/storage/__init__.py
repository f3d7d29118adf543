"""Tests of castore.storage: local files, streams, open descriptors."""
