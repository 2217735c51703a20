"""docs/api.md is what the schemas say, and no field of theirs is missing or claimed without being there."""

from __future__ import annotations

from pathlib import Path

import msgspec

from gateway.api_doc import BODIES, IGNORED, NOTES, OF_ENDPOINT, documented_names, render

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"


def test_the_page_is_what_the_module_prints() -> None:
    assert PAGE.read_text(encoding="utf-8") == render()


def test_every_field_of_every_body_is_on_the_page() -> None:
    fields = {name for struct in BODIES.values() for name in struct.__struct_encode_fields__}

    assert fields <= documented_names(render())


def test_notes_speak_only_of_fields_that_exist() -> None:
    fields = {name for struct in BODIES.values() for name in struct.__struct_encode_fields__}

    assert set(NOTES) <= fields
    assert all(name in struct.__struct_encode_fields__ for struct, name in OF_ENDPOINT)


def test_what_is_said_to_be_ignored_is_in_no_struct() -> None:
    for struct, names in IGNORED.items():
        assert issubclass(struct, msgspec.Struct)
        assert not set(names) & set(struct.__struct_encode_fields__)
