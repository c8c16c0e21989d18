"""`levada user` and `token`: users, roles and access tokens."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from levada.cli.connection import Server, StateDir, connect
from levada.cli.formatting import ago, clock
from levada.cli.lists import ListFormat, Output, show
from levada.cli.output import TextOrJson, data, data_json, message


class RoleChoice(StrEnum):
    """Roles of a token."""

    VIEWER = "viewer"
    USER = "user"
    OPERATOR = "operator"
    ADMIN = "admin"


RoleOption = Annotated[RoleChoice, typer.Option("--role", help="Role; each includes the rights of those before it.")]
Expires = Annotated[
    str | None,
    typer.Option("--expires", metavar="TIME", help="Let the token expire after TIME, e.g. 30d. Default: never."),
]
Answer = Annotated[TextOrJson, typer.Option("--output", "-o", help="Output format.")]


def register(app: typer.Typer) -> None:
    """Add the groups `user` and `token`."""
    users = typer.Typer(help="Create, list and revoke users of the server.", rich_markup_mode=None)
    users.command("create")(create_user)
    users.command("ls")(list_users)
    users.command("revoke")(revoke_users)
    app.add_typer(users, name="user")
    tokens = typer.Typer(help="Create, list and revoke access tokens.", rich_markup_mode=None)
    tokens.command("create")(create_token)
    tokens.command("ls")(list_tokens)
    tokens.command("revoke")(revoke_tokens)
    app.add_typer(tokens, name="token")


def create_user(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.", show_default=False)],
    role: RoleOption = RoleChoice.USER,
    expires: Expires = None,
    output: Answer = TextOrJson.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Create a user and print their token (once)."""
    _create(name, role, expires, output, server, state)


def create_token(
    role: RoleOption = RoleChoice.USER,
    user: Annotated[str | None, typer.Option("--user", "-u", help="User of the token. Default: you.")] = None,
    expires: Expires = None,
    output: Answer = TextOrJson.TEXT,
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Create a token and print it (once)."""
    _create(user, role, expires, output, server, state)


def _create(
    user: str | None, role: RoleChoice, expires: str | None, output: TextOrJson, server: str | None, state: str | None
) -> None:
    from levada.cli.logs import seconds

    expires_s = None if expires is None else seconds(expires, "--expires")
    with connect(server, state) as client:
        created: Any = client.create_token(user=user, role=role.value, expires_s=expires_s)
        address = client.address.url
    if output is TextOrJson.JSON:
        data_json(created)
        return
    data(created["token"])
    message(f"The token is shown only once. {created['user']} can use it with: levada login {address}")


def list_users(output: Output = ListFormat.TABLE, server: Server = None, state: StateDir = None) -> None:
    """List users with their roles."""
    with connect(server, state) as client:
        users = client.users()

    def table(wide: bool) -> Any:
        return ("NAME", "ROLE", "TOKENS"), [(user["name"], user["role"], str(user["tokens"])) for user in users]

    show(users, output, table)


def list_tokens(output: Output = ListFormat.TABLE, server: Server = None, state: StateDir = None) -> None:
    """List tokens without their secrets."""
    with connect(server, state) as client:
        tokens: list[Any] = list(client.tokens())

    def table(wide: bool) -> Any:
        header = ("ID", "USER", "ROLE", "CREATED", "EXPIRES", "LAST USED")
        return header, [
            (token["id"], token["user"], token["role"], clock(token["created"]), clock(token["expires"]),
             f"{ago(token['last_used'])} ago" if token["last_used"] else "-")
            for token in tokens
        ]  # fmt: skip

    show(tokens, output, table, key="id")


def revoke_users(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Names of users.", show_default=False)],
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Revoke all tokens of users."""
    with connect(server, state) as client:
        for name in names:
            client.revoke_user(name)
            data(f"Revoked all tokens of {name}")


def revoke_tokens(
    ids: Annotated[
        list[str],
        typer.Argument(metavar="ID...", help="Ids of tokens, as listed by `levada token ls`.", show_default=False),
    ],
    server: Server = None,
    state: StateDir = None,
) -> None:
    """Revoke tokens by id."""
    with connect(server, state) as client:
        for token_id in ids:
            client.revoke_token(token_id)
            data(f"Revoked {token_id}")
