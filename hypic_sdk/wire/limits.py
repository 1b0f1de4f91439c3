"""Caps on what may come in; the limit stands in every refusal."""

MAX_TEXT_CHARS = 16 << 20
MAX_MESSAGES = 4096
MAX_PARTS = 4096  # of one message or prompt
MAX_DOCUMENTS = 4096
MAX_NAME_CHARS = 256  # names, ids of the caller's own, titles
MAX_TOOLS = 256
MAX_TOOL_CALLS = 256  # of one message
MAX_ARGUMENTS_CHARS = 1 << 20  # of one tool call
MAX_TOOLS_JSON_CHARS = 4 << 20  # of all schemas together
MAX_TEMPLATE_OPTIONS = 32
MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_TOKENS = 1 << 24
MAX_TOP_LOGPROBS = 20
MAX_REPLIES = 64  # to one prompt
MAX_LOGIT_BIASES = 1024
MAX_GRAMMAR_CHARS = 128 << 10
MAX_CHOICES = 4096
MAX_SEGMENTS_PER_CALL = 256
MAX_IDS_PER_CALL = 100_000
MAX_METADATA = 64  # entries
MAX_METADATA_CHARS = 16 << 10  # of the JSON of all
MAX_PAGE = 1000
MAX_TTL_S = 10 * 366 * 86_400
