"""Commands that look whether a machine is fit."""
