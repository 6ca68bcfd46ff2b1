"""The nouns of gpugrade: frozen, slotted, without input or output. Every other room speaks in them."""
