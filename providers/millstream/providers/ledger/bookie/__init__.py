"""One directory of entries: a shared journal, fences, an index of all entries, and their deletion.

Owns the files of one directory and the decisions about them. `form` has the format of the files,
`directory` opens them, `journal` writes, `store` knows their content, `entry_reader` reads, and
`bookie` puts the parts together. `damage` finds damaged entries of a running bookie, and `offline`
reads a directory without its bookie. The design is explained in docs/internals/ledger_bookie.md.
Reading starts at `bookie.py`.
May import `protocol` and `runtime`.
"""
