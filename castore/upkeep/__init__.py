"""Upkeep: what keeps a store sound and small.  Sessions, gc, fsck."""
