"""One cycle over all sources, failures isolated, and its schedule."""
