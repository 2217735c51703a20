"""The only package that knows HTTP: auth, the request pipeline, routing, streaming, admin API, metrics, CLI."""
