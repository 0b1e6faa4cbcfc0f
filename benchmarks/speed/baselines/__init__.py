"""One script per baseline. Each runs in the virtual environment of its library."""
