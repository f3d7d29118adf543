"""Tests of castore.packs: pack bytes, codecs, reading, scrubbing, the index."""
