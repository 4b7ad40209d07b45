"""The page: HTML, CSS and JavaScript, which are package data."""
