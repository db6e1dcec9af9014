"""The table of claims, how each is judged, and the page that is made of it."""
