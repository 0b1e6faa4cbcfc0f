"""Wrappers: environments that change another one, as in Gymnasium; `make` takes them as options of any environment."""
