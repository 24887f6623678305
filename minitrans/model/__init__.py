"""The model, in torch alone. Reading order: masks, attention, positions, feedforward, layers, transformer."""
