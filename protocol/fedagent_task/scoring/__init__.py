"""How good a model is: figures, what computes them, and model files that take samples."""
