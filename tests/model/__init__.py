"""Tests of castore.model: encoding, grid, key paths, objects, castore.json."""
