"""The operations of the HTTP API: their paths, their functions, and the OpenAPI document.

Owns the table of routes, the form of a route and the matching of paths (`route`), and the functions
behind the routes. Reading starts at `table.py`.
May import `core`, `http.forms`, `runtime` and `surface`.
"""
