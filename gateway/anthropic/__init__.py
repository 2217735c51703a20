"""Anthropic's Messages API over the chat's road: bodies in, blocks and events out, errors in its envelope."""
