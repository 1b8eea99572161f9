"""What an engine shows of itself over HTTP: metrics, health and readiness."""
