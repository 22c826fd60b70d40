"""Checks made before a request's body is read: API key, rate limit, origin, client address."""
