"""What training and serving share: taxonomy, preprocessing, ranking, the bundle and the network."""
