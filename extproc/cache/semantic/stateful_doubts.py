"""Signs that make a text doubtful: each is common in stateless texts too. A model of many texts
weighs them; where there is none each refuses. Patterns only."""

import re

from extproc.cache.semantic.stateful_signs import Sign, any_of
from extproc.cache.semantic.stateful_text import GENERAL_OPENING

SUSPECT = (
    Sign(
        "unusual opening",
        "it does not begin as a general question does",
        re.compile(rf"^(?!{GENERAL_OPENING.pattern})"),
        unless=re.compile(
            r"\b(?:recipe|example|vs|versus|meaning|definition|difference|tutorial|ideas|of|for|to)\b"
        ),
        in_how_to=True,
    ),
    Sign(
        "short",
        "it is too short to stand alone",
        re.compile(r"^\W*+(?:\w++\W*+){0,2}+$"),
        in_how_to=True,
    ),
    Sign(
        "pronoun",
        "it may point at something that is not in it",
        any_of(
            r"\b(?:he|she|him|her|his|hers|they|them|their|it|this|that(?= ?[?.!]|$)|these|"
            r"those|one[?.!]*$)\b"
        ),
        in_how_to=True,
    ),
    Sign("own", "it speaks of somebody's own things", any_of(r"\b(?:my|mine|our|ours|me)\b")),
    Sign(
        "own, how to",
        "it speaks of somebody's own things",
        any_of(r"^how .*\b(?:my|our)\b"),
        in_how_to=True,
    ),
    Sign(
        "definite",
        "it speaks of one thing that is not named",
        any_of(
            r"\bthe (?:\w+ )?\w+[?.!]*$",
            r"^(?:is|are|was|has|did|will|does) the\b",
        ),
    ),
    Sign(
        "time word",
        "its answer may change with the time",
        any_of(
            r"\b(?:now|current|latest|newest|recent|next|last|already|yet|until|still|today|"
            r"tonight|tomorrow|"
            r"yesterday|this|since|just|new|monday|tuesday|wednesday|thursday|friday|saturday|"
            r"sunday)\b"
        ),
        in_how_to=True,
    ),
    Sign(
        "progress",
        "it asks about something under way",
        any_of(
            r"\b(?:is|are|am|was|were) (?:\w+ ){0,4}\w{3,}ing\b",
            r"\b(?:has|"
            r"have) (?:\w+ ){1,4}\w+ed\b",
        ),
    ),
    Sign(
        "who is",
        "it asks who holds an office or a title",
        any_of(r"^who (?:is|are) (?:the )?\w+(?: \w+){0,3}[?.!]*$"),
    ),
    Sign("you", "it speaks to the assistant", any_of(r"\b(?:you|your)\b"), in_how_to=True),
    Sign(
        "command",
        "it is a command",
        any_of(
            r"^(?:make|add|change|use|turn|say|check|fix|find|remove|delete|open|close|read|show|"
            r"send|set|update|put|"
            r"shorten|save|try|do|let|keep|move|create|generate|pick|choose)\b"
        ),
    ),
    Sign(
        "price",
        "it asks for a price or a number of today",
        any_of(
            r"\b(?:price|rate|worth|cost|costs|population|version|rank|ranking|balance|status)\b"
        ),
    ),
)
