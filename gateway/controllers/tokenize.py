"""/tokenize and /detokenize in vLLM's shape, under both paths; they compute no token, so they cost none."""

from __future__ import annotations

from typing import Any

from litestar import Controller, Request, Response, post
from litestar.di import NamedDependency
from litestar.params import JSONBody

from gateway.auth import principal_of, requires_key
from gateway.decoding import BodyDTO
from gateway.errors import InvalidRequest
from gateway.operation_ids import at_each_path
from gateway.prompts import TextModel
from gateway.routing import Router
from gateway.sampling import check_ids
from gateway.schemas.tokenize import DetokenizeRequest, DetokenizeResponse, TokenizeRequest, TokenizeResponse
from gateway.texts import Texts


class TokenizeController(Controller):
    """Text to ids and back."""

    tags = ("Tokenizer",)
    guards = (requires_key,)

    @post(
        ["/tokenize", "/v1/tokenize"],
        operation_id=at_each_path("Tokenize"),
        summary="Text or messages to token ids",
        dto=BodyDTO[TokenizeRequest],
        return_dto=None,
        status_code=200,
    )
    async def tokenize(
        self,
        request: Request[Any, Any, Any],
        data: JSONBody[TokenizeRequest],
        router: NamedDependency[Router],
        texts: NamedDependency[Texts],
    ) -> Response[TokenizeResponse]:
        """Raises: InvalidRequest unless exactly one of `prompt` and `messages` is given; ModelNotFound."""
        model = _model(request, data.model, router, texts)
        if (data.prompt is None) == (data.messages is None):
            raise InvalidRequest("Give exactly one of 'prompt' and 'messages'.", param="prompt")
        if data.messages is not None:
            ids = (await model.chat(data.messages)).token_ids
        else:
            ids = await model.encode(data.prompt or "", add_special_tokens=data.add_special_tokens is not False)
        strs = [model.tokenizer.id_to_token(each) or "" for each in ids] if data.return_token_strs else None
        return Response(
            TokenizeResponse(count=len(ids), max_model_len=model.info.max_model_len, tokens=ids, token_strs=strs)
        )

    @post(
        ["/detokenize", "/v1/detokenize"],
        operation_id=at_each_path("Detokenize"),
        summary="Token ids to text",
        dto=BodyDTO[DetokenizeRequest],
        return_dto=None,
        status_code=200,
    )
    async def detokenize(
        self,
        request: Request[Any, Any, Any],
        data: JSONBody[DetokenizeRequest],
        router: NamedDependency[Router],
        texts: NamedDependency[Texts],
    ) -> Response[DetokenizeResponse]:
        """Raises: InvalidRequest for an id out of vocabulary; ModelNotFound."""
        model = _model(request, data.model, router, texts)
        check_ids(data.tokens, model.info, "tokens")
        return Response(DetokenizeResponse(prompt=model.decode(data.tokens, skip_special_tokens=False)))


def _model(request: Request[Any, Any, Any], name: str | None, router: Router, texts: Texts) -> TextModel:
    """The model asked for; without a name the first that the key may use."""
    principal = principal_of(request)
    if name is None:
        visible = router.visible_names(principal)
        name = visible[0] if visible else ""
    return texts.of(router.resolve(name, principal))
