"""The paths of the OpenAI API that Forebay serves."""

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
MODELS = "/v1/models"
