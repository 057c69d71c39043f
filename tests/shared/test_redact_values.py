"""Secrets leave documents and texts, and nothing else does."""

from __future__ import annotations

import pytest

from aj.shared.redact import hide, looks_secret, redact, redact_text


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN",
        "hftoken",
        "TOKEN_FILE",
        "WANDB_API_KEY",
        "AZURE_CLIENT_SECRET",
        "DB_PASSWORD",
        "PW",
        "SSH_KEY",
        "STORAGE_CONNECTION_STRING",
        "sas",
    ],
)
def test_names_that_look_secret(name: str) -> None:
    assert looks_secret(name)


@pytest.mark.parametrize(
    "name",
    ["NCCL_DEBUG", "KEYBOARD", "MONKEY", "LR", "AJ_NAME", "PATH", "TOKENIZERS_PARALLELISM", "MAX_TOKENS", "AUTHOR"],
)
def test_names_that_do_not(name: str) -> None:
    assert not looks_secret(name)


def test_both_shapes_of_an_environment_are_hidden() -> None:
    document = {
        "env": {"HF_TOKEN": "hf_abc", "LR": "1"},
        "pods": [{"env": [{"name": "HF_TOKEN", "value": "hf_abc"}, {"name": "LR", "value": "1"}]}],
        "HF_TOKEN": "a key of the document itself",
    }
    assert redact(document, {"HF_TOKEN"}) == {
        "env": {"HF_TOKEN": hide("hf_abc"), "LR": "1"},
        "pods": [{"env": [{"name": "HF_TOKEN", "value": hide("hf_abc")}, {"name": "LR", "value": "1"}]}],
        "HF_TOKEN": "a key of the document itself",
    }


def test_another_value_hides_differently() -> None:
    assert hide("a") != hide("b")
    assert "secret" not in hide("secret")


def test_texts_lose_long_values_first() -> None:
    assert redact_text("token abcdef and abcd, but abc stays", ["abcd", "abcdef", "abc"]) == (
        "token <hidden> and <hidden>, but abc stays"
    )
