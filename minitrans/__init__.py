"""minitrans: understand, train and take apart the encoder-decoder Transformer."""

__version__ = "0.1.0"
