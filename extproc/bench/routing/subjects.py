"""Which subject of MMLU the questions of routing-dev.jsonl are from; the file itself does not say.

Joined by the question with the names of the answer files of lm-sys/RouteLLM. A question that two
subjects have belongs to the one among whose questions it stands.
"""

SHA256 = "4330f60e15a3cfe168fac9080f267b5a720813e5d2af7a13c6935a3308e942e2"
"""Of the one file that this is true of."""

_RUNS = """
abstract_algebra 18, anatomy 22, astronomy 23, business_ethics 16, clinical_knowledge 41,
college_biology 20, college_chemistry 13, college_computer_science 12, college_mathematics 20,
college_medicine 25, college_physics 10, computer_security 15, conceptual_physics 47,
econometrics 16, electrical_engineering 22, elementary_mathematics 58, formal_logic 20,
global_facts 17, high_school_biology 44, high_school_chemistry 34,
high_school_computer_science 17, high_school_european_history 22, high_school_geography 37,
high_school_government_and_politics 35, high_school_macroeconomics 59,
high_school_mathematics 45, high_school_microeconomics 36, high_school_physics 21,
high_school_psychology 83, high_school_statistics 35, high_school_us_history 34,
high_school_world_history 47, human_aging 38, human_sexuality 26, international_law 18,
jurisprudence 22, logical_fallacies 29, machine_learning 18, management 9, marketing 35,
medical_genetics 20, miscellaneous 136, moral_disputes 56, moral_scenarios 161, nutrition 52,
philosophy 56, prehistory 55, professional_accounting 34, professional_law 274,
professional_medicine 48, professional_psychology 99, public_relations 11, security_studies 32,
sociology 31, us_foreign_policy 16, virology 31, world_religions 30
"""


def subjects() -> list[str]:
    """Of its MMLU questions, in the order of the file."""
    runs = (run.split() for run in _RUNS.replace("\n", " ").split(","))
    return [subject for subject, count in runs for _ in range(int(count))]
