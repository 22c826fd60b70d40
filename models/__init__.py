"""What training and serving must agree on: taxonomy, preprocessing, ranking, the bundle, and the network itself."""
