"""gpugrade's scorer: it knows evidence, grades and placement, and touches no hardware."""
