"""From the bytes of a request to an answer: admission, body, decoding, network runs, and the loaded bundle."""
