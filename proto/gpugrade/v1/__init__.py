"""Contracts between the probes, the scorer and their users: messages and services of gpugrade."""
