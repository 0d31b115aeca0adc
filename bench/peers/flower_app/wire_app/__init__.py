"""The app that Flower is given: a model goes out, comes back, and is averaged."""
