"""Sources of samples. Importing this package, or `spec`, does not import numpy."""
