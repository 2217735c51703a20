"""Bodies of OpenAI's organization API, exactly as its SDKs read them: times in Unix seconds, money as JSON numbers.

Source: openai-openapi `openapi.yaml`, commit f85dbe2. An organization is a tenant. What Weir has no counterpart of
(users, residency, audio, images) stands at OpenAI's empty value; asked to be set, it is refused by name.
"""

from __future__ import annotations
