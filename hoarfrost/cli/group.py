"""A group of commands, such as `hoarfrost budget`."""

import typer


def command_group(text: str) -> typer.Typer:
    """A group with this help text. Without a command it prints its help and exits with code 0, as typer's own does not.

    >>> command_group("Do things.").info.help
    'Do things.'
    """
    group = typer.Typer(help=text, rich_markup_mode=None)

    @group.callback(invoke_without_command=True, help=text)
    def start(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            print(context.get_help())

    return group
