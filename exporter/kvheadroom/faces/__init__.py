"""What people and Prometheus see: exposition, pages, JSON."""
