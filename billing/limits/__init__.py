"""Limits: rules in SQL (`rules`), compiled for a key and model (`policy`), enforced in Redis (`admission`)."""
