"""What figures and pictures of the documents claim, tried in small: `python -m bench figures`."""
