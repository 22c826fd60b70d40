"""Decodes pictures in child processes with limited memory and time; a picture that crashes a decoder fails alone."""
