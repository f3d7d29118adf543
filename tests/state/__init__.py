"""Tests of castore.state, on a store of two dicts."""
