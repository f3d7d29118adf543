"""Tests of looking into contents: differences, tensors, chunks, what they take."""
