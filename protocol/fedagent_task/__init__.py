"""What is learnt: recipes, models, metrics and data readers in numpy."""
