"""Answers to questions that ask the same in other words."""
