"""Answers given again to a question that is asked in other words. Pure: no IO, no clock."""
