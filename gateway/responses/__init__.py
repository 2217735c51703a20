"""/v1/responses: items to messages and back, events, and what is kept of a response."""
