"""`levada user` and `token`: who may do what."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from levada.cli.connection import Server, State, connect
from levada.cli.lists import ListFormat, Output, show
from levada.cli.output import TextOrJson, chatter, data, data_json
from levada.cli.words import ago, clock


class Role(StrEnum):
    """What a token allows."""

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"


RoleOption = Annotated[
    Role,
    typer.Option(
        "--role", help="viewer looks, user has jobs, operator also has nodes, queues and policies, admin has tokens."
    ),
]
Expires = Annotated[str | None, typer.Option("--expires", metavar="TIME", help="It ends after so long, e.g. 30d.")]
Answer = Annotated[TextOrJson, typer.Option("--output", "-o", help="How to print it.")]


def register(app: typer.Typer) -> None:
    """Adds the groups `user` and `token`."""
    users = typer.Typer(help="People who may use the server.", rich_markup_mode=None)
    users.command("create")(create_user)
    users.command("ls")(list_users)
    users.command("revoke")(revoke_users)
    app.add_typer(users, name="user")
    tokens = typer.Typer(help="Tokens: what people and programs show the server.", rich_markup_mode=None)
    tokens.command("create")(create_token)
    tokens.command("ls")(list_tokens)
    tokens.command("revoke")(revoke_tokens)
    app.add_typer(tokens, name="token")


def create_user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who.", show_default=False)],
    role: RoleOption = Role.USER,
    expires: Expires = None,
    output: Answer = TextOrJson.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Let somebody use the server: makes a token for them and prints it, once."""
    _create(name, role, expires, output, server, state)


def create_token(
    role: RoleOption = Role.USER,
    user: Annotated[str | None, typer.Option("--user", "-u", help="For somebody else.")] = None,
    expires: Expires = None,
    output: Answer = TextOrJson.TEXT,
    server: Server = None,
    state: State = None,
) -> None:
    """Make a token and print it, once."""
    _create(user, role, expires, output, server, state)


def _create(
    user: str | None, role: Role, expires: str | None, output: TextOrJson, server: str | None, state: str | None
) -> None:
    from levada.cli.logs import seconds

    expires_s = None if expires is None else seconds(expires, "--expires")
    with connect(server, state) as client:
        made: Any = client.create_token(user=user, role=role.value, expires_s=expires_s)
        address = client.address.url
    if output is TextOrJson.JSON:
        data_json(made)
        return
    data(made["token"])
    chatter(f"It is shown only now. {made['user']} uses it with: levada login {address}")


def list_users(output: Output = ListFormat.TABLE, server: Server = None, state: State = None) -> None:
    """List everybody who has a token."""
    with connect(server, state) as client:
        found = client.users()

    def table(wide: bool) -> Any:
        return ("NAME", "ROLE", "TOKENS"), [(each["name"], each["role"], str(each["tokens"])) for each in found]

    show(found, output, table)


def list_tokens(output: Output = ListFormat.TABLE, server: Server = None, state: State = None) -> None:
    """List the tokens, without their secrets."""
    with connect(server, state) as client:
        found: list[Any] = list(client.tokens())

    def table(wide: bool) -> Any:
        header = ("ID", "USER", "ROLE", "CREATED", "EXPIRES", "LAST USED")
        return header, [
            (each["id"], each["user"], each["role"], clock(each["created"]), clock(each["expires"]),
             f"{ago(each['last_used'])} ago" if each["last_used"] else "-")
            for each in found
        ]  # fmt: skip

    show(found, output, table, key="id")


def revoke_users(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Who.", show_default=False)],
    server: Server = None,
    state: State = None,
) -> None:
    """End all tokens of somebody."""
    with connect(server, state) as client:
        for name in names:
            client.revoke_user(name)
            data(f"Revoked all tokens of {name}")


def revoke_tokens(
    ids: Annotated[list[str], typer.Argument(metavar="ID...", help="As levada token ls shows.", show_default=False)],
    server: Server = None,
    state: State = None,
) -> None:
    """End tokens."""
    with connect(server, state) as client:
        for each in ids:
            client.revoke_token(each)
            data(f"Revoked {each}")
