"""A cached answer and a fresh one: told apart where they contradict each other, and only there."""

import pytest

from extproc.cache.semantic.agree import answers_agree
from extproc.embedders.onnx import ModelFiles
from extproc.embedders.onnx_worker import OnnxModel


@pytest.fixture(scope="module")
def embedder() -> OnnxModel:
    return OnnxModel(*ModelFiles.minilm())


SAME = [
    ("The capital of France is Paris.", "Paris is the capital of France."),
    ("Paris.", "The capital is Paris."),
    (
        "Boil the egg for 8 minutes, then cool it in cold water.",
        "Put the egg in boiling water for 8 minutes. Afterwards cool it under cold water.",
    ),
    ("Yes, rats can swim well.", "Yes. Rats are good swimmers."),
    ("No, bats are not blind.", "No. Bats can see."),
    ("1,000 metres", "A kilometre has 1000 metres."),
    (
        "Water boils at 100 °C at sea level.",
        "At sea level, water boils at 100 degrees Celsius (212 °F).",
    ),
    (
        "Jane Austen wrote Pride and Prejudice.",
        "Pride and Prejudice was written by Jane Austen in 1813.",
    ),
    ("1. Heat the pan.\n2. Add oil.", "First heat the pan. Then add oil."),
    (
        "Use git stash to save changes without committing them.",
        "`git stash` saves your uncommitted changes for later.",
    ),
]

CONTRADICTIONS = [
    ("The capital of France is Paris.", "The capital of Spain is Madrid.", "names"),
    ("Boil the egg for 8 minutes.", "Boil the egg for 12 minutes.", "numbers"),
    ("It costs 1,500 euros.", "It costs 15,000 euros.", "numbers"),
    ("Yes, rats can swim.", "No, they cannot.", "polarity"),
    ("It is safe to eat.", "It is not safe to eat.", "negation"),
    ("You should never mix them.", "You should mix them.", "negation"),
    ("It was written by Jane Austen.", "It was written by Mary Shelley.", "names"),
    ("Paris.", "Madrid.", "similarity"),
]


@pytest.mark.parametrize(("cached", "fresh"), SAME)
def test_other_words_are_no_contradiction(cached: str, fresh: str, embedder: OnnxModel) -> None:
    similarity = float(embedder.embed(cached) @ embedder.embed(fresh))
    assert answers_agree(cached, fresh, similarity).agree
    assert answers_agree(fresh, cached, similarity).agree
    assert answers_agree(cached, cached, 1.0) == (True, "same")


@pytest.mark.parametrize(("cached", "fresh", "why"), CONTRADICTIONS)
def test_a_contradiction_is_one_however_near_the_texts(
    cached: str, fresh: str, why: str, embedder: OnnxModel
) -> None:
    similarity = float(embedder.embed(cached) @ embedder.embed(fresh))
    assert answers_agree(cached, fresh, similarity) == (False, why)
    assert answers_agree(fresh, cached, similarity) == (False, why)


def test_without_a_similarity_only_the_texts_speak() -> None:
    assert answers_agree("It is blue.", "The sky looks blue.", None) == (True, "no_contradiction")
    assert answers_agree("It is 5.", "It is 6.", None) == (False, "numbers")


def test_what_is_far_apart_is_no_agreement() -> None:
    assert answers_agree("Use a saw.", "Bread needs yeast.", 0.59) == (False, "similarity")
    assert answers_agree("Use a saw.", "Take a saw for it.", 0.6) == (True, "similar")


@pytest.mark.parametrize("text", ["", "1.2.3.4", "1,2,3,4", "٣", "²", "1" * 400, "v2.10.0", "½"])
def test_any_text_can_be_compared(text: str) -> None:
    assert answers_agree(text, text, 1.0).agree
    answers_agree(text, "42", 0.5)
