"""Small tools that every room borrows."""
