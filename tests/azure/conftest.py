"""The simulated Azure for the tests of this folder."""

from tests.azure.fixtures import azure, azure_session, azurite, azurite_http, certificate

__all__ = ["azure", "azure_session", "azurite", "azurite_http", "certificate"]
