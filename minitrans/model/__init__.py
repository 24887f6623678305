"""The model, in torch alone. Reading order: masks, attention, positions, feedforward, layers, transformer.

The Transformer shares the face of ``encoder_decoder`` with its rivals, ``recurrent`` and ``convolutional``.
"""
