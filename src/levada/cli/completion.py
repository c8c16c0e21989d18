"""`levada completion bash|zsh|fish`: a script that completes verbs and options with the Tab key.

The scripts ask `levada` itself, with the environment variables that typer answers to, so they never go stale.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from levada.cli.output import data

#: Set by the scripts when they ask.
ASKED = "_LEVADA_COMPLETE"


class Shell(StrEnum):
    """The shells that are supported."""

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
    """Makes `levada` answer the scripts; typer does this by itself only for the options that we switched off."""
    from typer.completion import get_completion_inspect_parameters

    get_completion_inspect_parameters()


def register(app: typer.Typer) -> None:
    """Adds the verb `completion`."""
    app.command("completion")(completion)


def completion(
    shell: Annotated[
        Shell, typer.Argument(metavar="SHELL", help="Which shell: bash, zsh or fish.", show_default=False)
    ],
) -> None:
    """Print the completion script of a shell."""
    data(SCRIPTS[shell])
