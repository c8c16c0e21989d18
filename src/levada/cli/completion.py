"""`levada completion bash|zsh|fish`: print a shell completion script.

The scripts call `levada` with the environment variables of typer, so they do not depend on its version.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from levada.cli.output import data

#: Set by the scripts when they ask for completions.
COMPLETE_VARIABLE = "_LEVADA_COMPLETE"


class Shell(StrEnum):
    """Supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


SCRIPTS = {
    Shell.BASH: """\
# levada completion bash: put `source <(levada completion bash)` into ~/.bashrc
_levada_completion() {
    local IFS=$'\\n'
    COMPREPLY=($(env COMP_WORDS="${COMP_WORDS[*]}" COMP_CWORD="$COMP_CWORD" _LEVADA_COMPLETE=complete_bash "$1"))
}
complete -o default -F _levada_completion levada""",
    Shell.ZSH: """\
#compdef levada
# levada completion zsh: put `source <(levada completion zsh)` into ~/.zshrc, after compinit
_levada_completion() {
    eval $(env _TYPER_COMPLETE_ARGS="${words[1,$CURRENT]}" _LEVADA_COMPLETE=complete_zsh levada)
}
compdef _levada_completion levada""",
    Shell.FISH: """\
# levada completion fish: levada completion fish > ~/.config/fish/completions/levada.fish
function _levada_completion
    env _LEVADA_COMPLETE=complete_fish _TYPER_COMPLETE_FISH_ACTION=$argv[1] \\
        _TYPER_COMPLETE_ARGS=(commandline -cp) levada
end
complete --command levada --no-files --condition '_levada_completion is-args' \\
    --arguments '(_levada_completion get-args)'""",
}


def prepare() -> None:
    """Enable typer's completion, which it enables itself only with its own options (`add_completion`)."""
    from typer.completion import get_completion_inspect_parameters

    get_completion_inspect_parameters()


def register(app: typer.Typer) -> None:
    """Add the verb `completion`."""
    app.command("completion")(completion)


def completion(
    shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="Shell: bash, zsh or fish.", show_default=False)],
) -> None:
    """Print a completion script for bash, zsh or fish."""
    data(SCRIPTS[shell])
