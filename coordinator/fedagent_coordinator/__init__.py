"""The coordinator: decides who trains where and keeps the budget."""
