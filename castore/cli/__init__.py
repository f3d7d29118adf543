"""The command line: git's words for checkpoints.

It finds the store, calls :class:`castore.store.Store`, and shows the reports that come back; what
is true of a store is decided below this package, never in it.  Verbs live in one module a family
(``inspect``, ``refs``, ``upkeep``), work apart from rendering.

Results go to stdout, messages and progress to stderr.  ``--json`` prints the very reports the text
is made from: one JSON object a line, each with a ``type``; fields are only ever added.
"""
