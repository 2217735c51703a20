"""Alembic's history of the books, inside the package so that an installed wheel can migrate an empty folder."""
