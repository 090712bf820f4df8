"""What runs kvheadroom elsewhere: container, compose, systemd, Kubernetes, Prometheus, Grafana."""
