"""The command; see the package."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable

import tests.mutants
from tests.mutants import ALL_MUTANTS
from tests.mutants.mutant import Mutant, problem
from tests.mutants.trial import ROOT, is_found


def show(mutants: Iterable[Mutant]) -> bool:
    """Names them all with their places. Whether each of them is about the code."""
    problems = []
    for mutant in mutants:
        print(f"{mutant.name}  ({mutant.at}; {mutant.tests})")
        problems += [text for text in [problem(mutant, ROOT)] if text]
    print("\n".join(problems) or "all are about the code")
    return not problems


def run(mutants: Iterable[Mutant]) -> bool:
    """Tries them. Whether all were found."""
    results = []
    for mutant in mutants:
        started = time.monotonic()
        found, output = is_found(mutant)
        results.append(found)
        print(f"{'found ' if found else 'MISSED'} {time.monotonic() - started:5.1f} s  {mutant.name}", flush=True)
        if not found:
            print(output)
    print(f"{sum(results)} of {len(results)} found")
    return all(results)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=(tests.mutants.__doc__ or "").split("\n")[0]
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    unknown = {*arguments.names} - {mutant.name for mutant in ALL_MUTANTS}
    if unknown:
        parser.error(f"no such mutant: {', '.join(sorted(unknown))}")
    chosen = [mutant for mutant in ALL_MUTANTS if not arguments.names or mutant.name in arguments.names]
    return 0 if (show if arguments.list else run)(chosen) else 1


sys.exit(main())
