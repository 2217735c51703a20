"""/v1/files: content in SQL, by tenant and project, with a retention."""
