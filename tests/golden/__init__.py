"""Golden bytes of every kind of record that castore writes."""
