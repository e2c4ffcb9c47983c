"""The JSON Schema of the settings: what is in docs is what the settings are."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

from dropscribe import resources
from dropscribe.settings import Settings, json_schema

DOCS = Path(__file__).parents[1] / "docs" / "config.schema.json"


def test_the_schema_in_docs_is_current() -> None:
    assert json.loads(DOCS.read_text("utf-8")) == json.loads(json.dumps(json_schema())), (
        "run: dropscribe config schema > docs/config.schema.json"
    )


def test_the_command_prints_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "dropscribe", "config", "schema"], capture_output=True, text=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == json.loads(DOCS.read_text("utf-8"))


def properties(schema: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """The keys of a table and of the tables in it; an editor follows the same references."""
    found: dict[str, Any] = {}
    for name, value in table["properties"].items():
        target = value.get("items", value)
        if "$ref" in target:
            found[name] = properties(schema, schema["$defs"][target["$ref"].rsplit("/", 1)[1]])
        else:
            found[name] = None
    return found


def test_it_has_every_key_and_forbids_all_others_and_names_no_place_of_this_machine() -> None:
    schema = json_schema()
    keys = properties(schema, schema)
    assert set(keys) == set(Settings.model_fields)
    assert set(keys["watch"]) == set(Settings.model_fields["watch"].annotation.__args__[0].model_fields)  # type: ignore[union-attr]
    tables = [schema, *schema["$defs"].values()]
    assert all(table["additionalProperties"] is False for table in tables)
    assert str(Path.home()) not in json.dumps(schema)


def test_the_template_says_how_an_editor_finds_it() -> None:
    text = resources.template("config/dropscribe.toml")
    assert "dropscribe config schema" in text
    tomllib.loads(text)
