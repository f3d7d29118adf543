"""Saving and loading: from a state to durable bytes and one log entry, and back."""
