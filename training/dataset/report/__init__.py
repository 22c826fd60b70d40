"""The report of a preparation: an HTML page, and the same facts as JSON."""
