"""Latency of the extender beside a reference server in Go, in the same run."""
