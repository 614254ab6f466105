"""One directory of entries: a shared journal, fences, what is where, and what goes when.

`form` says what the files look like; `directory` has them, `journal` writes them, `store` knows
what is in them, `entry_reader` reads them, `bookie` puts it together. The page of prose is
docs/internals/ledger_bookie.md.

Owns the files of one directory and the decisions about them. `form` has the format of the files;
`directory` opens them, `journal` writes, `store` knows their content, `entry_reader` reads,
`bookie` puts the parts together. The prose is in docs/internals/ledger_bookie.md. Reading starts at
`bookie.py`.
May import `protocol` and `runtime`.
"""
