"""From a chat body to a Call: messages rendered and tokenised, fields checked against the model, output constrained.

/v1/responses and /v1/messages translate their bodies to a ChatRequest and come here too.
"""

from __future__ import annotations

import msgspec

from engine.types import Unstopped
from gateway.calls import Call
from gateway.constraints import Constrainer, prompt_parts
from gateway.errors import InvalidRequest
from gateway.intake import Intake
from gateway.messages import check_turns
from gateway.prompts import Prompt, TextModel
from gateway.reasoning import reasoning_of, with_reasoning
from gateway.routing import Router
from gateway.sampling import chat_sampling, fit
from gateway.schemas.chat import ChatRequest
from gateway.texts import Texts
from gateway.tools.plan import OutputPlan

PROMPT_END_TOKENS = 16  # enough for the tag that a thinking model's template may open, in any vocabulary


class ChatCalls:
    """Builds chat calls. `texts` finds a model's text side; `constrainer` makes grammars and output parsers."""

    def __init__(
        self, texts: Texts, router: Router, constrainer: Constrainer, *, allow_request_template: bool = False
    ) -> None:
        self._texts = texts
        self._router = router
        self._constrainer = constrainer
        self._allow_request_template = allow_request_template

    async def build(self, intake: Intake, data: ChatRequest) -> Call:
        """Raises: GatewayError for everything that is wrong with the request itself."""
        route = self._router.resolve(data.model, intake.principal)
        self._check(data)
        check_turns(data.messages)
        model = self._texts.of(route)
        plan = self._constrainer.chat(data, model)
        wanted = data.max_completion_tokens if data.max_completion_tokens is not None else data.max_tokens
        prompt = await self._prompt(intake, data, model, reserve_tokens=wanted or 1)
        wanted = route.default_max_tokens if wanted is None else wanted
        max_tokens = fit(len(prompt.token_ids), wanted, model.info, param="messages")
        sampling = plan.apply(chat_sampling(data, model.info, grammar=plan.grammar, max_tokens=max_tokens))
        reasoning = self._reasoning(plan, model, prompt)
        return intake.call(
            prompts=[prompt.token_ids],
            sampling=msgspec.structs.replace(sampling, unstopped=reasoning),
            new_parser=with_reasoning(plan.new_parser, reasoning),
            dropped_turns=prompt.dropped_turns,
        )

    def _reasoning(self, plan: OutputPlan, model: TextModel, prompt: Prompt) -> Unstopped | None:
        if model.template is None:
            return None
        return reasoning_of(
            model.template.source,
            prompt_end=model.decode(prompt.token_ids[-PROMPT_END_TOKENS:], skip_special_tokens=False),
            has_grammar=plan.grammar is not None and not plan.free_start,
        )

    def _check(self, data: ChatRequest) -> None:
        kwargs = data.chat_template_kwargs or {}
        given = "chat_template" if data.chat_template is not None else None
        if "chat_template" in kwargs:
            given = "chat_template_kwargs.chat_template"
        if given is not None and not self._allow_request_template:
            raise InvalidRequest(
                f"'{given}' is not allowed: this server renders messages with the model's own template.",
                param=given,
                code="invalid_value",
            )
        if data.continue_final_message and data.add_generation_prompt:
            raise InvalidRequest(
                "'continue_final_message' and 'add_generation_prompt' exclude each other.",
                param="continue_final_message",
                code="invalid_value",
            )

    async def _prompt(self, intake: Intake, data: ChatRequest, model: TextModel, *, reserve_tokens: int) -> Prompt:
        continue_final = bool(data.continue_final_message)
        generation_prompt = data.add_generation_prompt
        kwargs = dict(data.chat_template_kwargs or {})
        if data.reasoning_effort is not None:
            kwargs.setdefault("reasoning_effort", data.reasoning_effort)
            kwargs.setdefault("enable_thinking", data.reasoning_effort != "none")
        asked = intake.body.get("tools") if data.tool_choice != "none" else None
        messages, tools = prompt_parts(intake.body["messages"], asked or None, model)
        return await model.chat(
            messages,
            tools=tools,
            add_generation_prompt=not continue_final if generation_prompt is None else generation_prompt,
            continue_final_message=continue_final,
            template_kwargs=kwargs or None,
            truncation=data.truncation or "disabled",
            template_source=data.chat_template,
            reserve_tokens=reserve_tokens,
        )
