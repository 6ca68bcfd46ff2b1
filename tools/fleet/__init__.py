"""An emulated GPU fleet: tools, exporters and kernel logs of nodes that do not exist, over a seeded physical model."""
