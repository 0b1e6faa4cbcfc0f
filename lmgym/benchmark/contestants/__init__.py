"""The scripts that contestants run, each in the environment of its own library."""
