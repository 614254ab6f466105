"""One directory of entries: a shared journal, fences, what is where, and what goes when.

`form` says what the files look like; `directory` has them, `journal` writes them, `store` knows
what is in them, `entry_reader` reads them, `bookie` puts it together. The page of prose is
docs/internals/ledger_bookie.md.
"""
