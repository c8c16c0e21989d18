"""The verbs in groups, as `levada --help` and docs/commands.md show them."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

#: Headings, and the verbs below each; what nobody named here stands with the last.
PANELS: dict[str, tuple[str, ...]] = {
    "Server": ("up", "down", "serve", "agent"),
    "Jobs": (
        "submit", "apply", "whatif", "run", "attach", "exec", "ls", "get", "describe", "logs", "events", "explain",
        "wait", "cancel", "suspend", "resume", "scale", "update",
    ),
    "Cluster": ("top", "nodes", "cordon", "drain", "uncordon", "node", "reserve", "queues", "usage", "decisions",
                "snapshot", "replay", "metrics"),
    "Policies and simulations": ("policy", "allocate", "sim", "bench", "precompile", "profile", "tour", "demo"),
    "People and settings": ("user", "token", "login", "context", "doctor", "schema", "completion", "version"),
}  # fmt: skip


class Panels(TyperGroup):
    """The app, whose help has a heading for each group of verbs."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Writes the verbs, group by group."""
        verbs = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        shown = {name: verb for name, verb in verbs.items() if verb is not None and not verb.hidden}
        if not shown:
            return
        named = {name for names in PANELS.values() for name in names}
        widest = max(map(len, shown))
        for heading, names in PANELS.items():
            rest = [name for name in shown if name not in named] if heading == [*PANELS][-1] else []
            rows = [
                (name.ljust(widest), shown[name].get_short_help_str(formatter.width - 6 - widest))
                for name in (*names, *rest)
                if name in shown
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
