"""Groups of verbs for `levada --help` and docs/commands.md."""

from __future__ import annotations

from typing import Any

from typer.core import TyperGroup

#: Verbs by heading; verbs that are missing here are listed under the last one.
PANELS: dict[str, tuple[str, ...]] = {
    "Server": ("up", "down", "serve", "agent"),
    "Jobs": (
        "submit", "apply", "whatif", "run", "attach", "exec", "ls", "get", "describe", "logs", "events", "explain",
        "wait", "cancel", "suspend", "resume", "scale", "update",
    ),
    "Cluster": ("top", "nodes", "cordon", "drain", "uncordon", "node", "reserve", "queues", "usage", "decisions",
                "snapshot", "replay", "metrics"),
    "Policies and simulations": ("policy", "allocate", "sim", "bench", "precompile", "profile", "tour", "demo"),
    "People and settings": ("user", "token", "login", "context", "doctor", "kubernetes", "schema", "completion",
                            "version"),
}  # fmt: skip


class Panels(TyperGroup):
    """The app; its help has a heading for each group of verbs."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs, group by group."""
        verbs = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        visible = {name: verb for name, verb in verbs.items() if verb is not None and not verb.hidden}
        if not visible:
            return
        grouped = {name for names in PANELS.values() for name in names}
        widest = max(map(len, visible))
        for heading, names in PANELS.items():
            rest = [name for name in visible if name not in grouped] if heading == [*PANELS][-1] else []
            rows = [
                (name.ljust(widest), visible[name].get_short_help_str(formatter.width - 6 - widest))
                for name in (*names, *rest)
                if name in visible
            ]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows)
