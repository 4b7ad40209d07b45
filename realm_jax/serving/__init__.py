"""A page for questions to a trained run, with evidence that can be edited.

`service` answers requests with plain data, `app` is the HTTP interface, and
`server` listens. The page itself (HTML, CSS and JavaScript) is in `page`.
"""
