"""The log: one numbered sequence of immutable entries, and what they fold to."""
