"""Language: only what is surely in a language may use that language's embedder and guards."""

from __future__ import annotations

import pytest

from cache.language import language_of


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("How do I reset my password?", "en"),
        ("capital of France", "en"),
        ("Photosynthesis", "en"),
        ("Who is José?", "en"),
        ("怎么重置密码？", "zh"),
        ("怎么在Ubuntu上安装Python？", "zh"),
        ("パスワードを忘れました", "ja"),
        ("Wie kann ich mein Passwort ändern?", "de"),
        ("Comment puis-je changer mon mot de passe ?", "fr"),
        ("¿Cómo puedo cambiar mi contraseña?", "es"),
        ("Qual é a capital da França?", "pt"),
        ("Как сбросить пароль?", None),
        ("비밀번호를 재설정하려면?", None),
        ("كيف أغير كلمة المرور؟", None),
        ("How do I say пароль?", None),
        ("12345 ???", None),
        ("", None),
    ],
)
def test_language_of(text: str, language: str | None) -> None:
    assert language_of(text) == language
