"""`suffice reproduce conversion`: what conversions cost, and what healing gives back."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from rich.console import Console

from suffice.cli.printed import console_of, print_sheet, say
from suffice.errors import ConfigError
from suffice.measure.decode import encode
from suffice.reproduce.conversion import finished, publish, run, sheet, to_csv, wanted
from suffice.reproduce.conversion.run import MINUTES
from suffice.reproduce.request import FOLDER
from suffice.threads import threads

if TYPE_CHECKING:
    from suffice.cli.reproducing import Asked


def conversion(asked: Asked, console: Console) -> None:
    """Show the table, after making what it lacks if that was asked for.

    Raises:
        ConfigError: if something was asked that the table does not have.
    """
    given = {"--seeds": asked.seeds, "--heads": asked.heads, "--scale": asked.scale}
    given["--rerun"] = asked.rerun
    if strange := [name for name, value in given.items() if value is not None]:
        raise ConfigError(
            f"the table conversion has no {strange[0]}; leave it out. To convert again, choose "
            "another folder with --out."
        )
    keys, folder = wanted(), asked.out or FOLDER / "conversion"
    if asked.run:
        threads(asked.threads)
        minutes = MINUTES if asked.heal_minutes is None else asked.heal_minutes
        limit, quiet = asked.means.minutes, asked.means.quiet
        run(folder, keys, minutes=minutes, limit=limit, console=console, quiet=quiet)
    found = finished(folder, keys)
    if asked.publish:
        console.print(f"published: {publish(found)}", markup=False, soft_wrap=True)
    if asked.as_json:
        sys.stdout.write(json.dumps(encode(asdict(found)), indent=1) + "\n")
    elif asked.as_csv:
        sys.stdout.write(to_csv(found))
    else:
        print_sheet(sheet(found), console_of())
        if len(found.rows) < len(keys):
            say("What is missing was not run: suffice reproduce conversion --run")
