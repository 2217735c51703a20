"""The only package that knows HTTP: auth, the request pipeline, routing, streaming, admin API, metrics, CLI."""

__version__ = "0.1.0"
