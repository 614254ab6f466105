"""The operations of the API: their paths, what they do, and the document that says so."""
