"""A page that asks a trained run, shows its evidence and edits its blocks.

`service` answers requests as plain data, and `app` speaks HTTP. The page
itself, HTML, CSS and JavaScript, is in `page`.
"""
