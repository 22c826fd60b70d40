"""Two bundles and one frozen set of pictures -> a comparison, as an HTML page and as JSON."""
