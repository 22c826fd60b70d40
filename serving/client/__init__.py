"""A client of the service: it tries again where that helps, and returns the service's own records.

    from serving.client import Client

    with Client("http://127.0.0.1:8000") as client:
        answer = client.identify("leaf.jpg", "flower.jpg")
    print(answer.verdict.name, answer.verdict.score)

Needs httpx2 (extra `client`). `AsyncClient` is the same with `await`.
"""

from serving.client.clients import AsyncClient, Client, ServiceRefusal, ServiceUnreachable
from serving.schemas import Parameters

__all__ = ["AsyncClient", "Client", "Parameters", "ServiceRefusal", "ServiceUnreachable"]
