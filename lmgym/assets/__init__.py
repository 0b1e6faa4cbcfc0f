"""Assets: models and data by name, from a path, the hub or the package index, verified and cached."""
