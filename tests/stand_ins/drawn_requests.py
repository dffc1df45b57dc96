"""Requests drawn from an OpenAPI description, the same ones at each run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import schemathesis
from hypothesis import HealthCheck, given, settings


def draw(
    description: Mapping[str, Any], n_examples: int, ask: Callable[[Any], None], **more: Any
) -> None:
    """Calls `ask` with n_examples cases of each operation; some have fewer. more: settings of
    hypothesis."""
    for result in schemathesis.openapi.from_dict(dict(description)).get_all_operations():
        case = given(result.ok().as_strategy())
        rules = settings(
            max_examples=n_examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            **more,
        )
        rules(case(_named(ask)))()


def _named(ask: Callable[[Any], None]) -> Callable[[Any], None]:
    """hypothesis marks the function that it is given, so each operation needs its own."""

    def asks(case: Any) -> None:
        ask(case)

    return asks


def with_model(body: Any, name: str) -> Any:
    """Half of the bodies name the model that there is; a drawn name is nobody's."""
    if isinstance(body, dict) and len(json.dumps(body)) % 2:
        return {**body, "model": name}
    return body
